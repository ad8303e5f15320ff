"""The order of parameters, and how they are split into groups, change nothing but rounding.

The place of a matrix in a batch decides how it lies in memory, and so the order of the sums in its products:
equal up to rounding, in float64, for gradients of full rank. (With low rank, inverse roots amplify rounding.)
"""

import os
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from optim import fuzz_cases as cases

LR = 0.1
# Rounding to few digits turns small differences into large ones.
FEW_DIGITS = ("momentum_dtype", "adam_dtype", "sketch_dtype")
# With these, the order of shapes decides when each is updated, so that steps take similar times.
TURNS = ("update_every", "roots_every")
FIXED = {"lr": LR, "weight_decay": 0.1}
TOLERANCE = 1e-4  # of the length of a step; with β₂ = 0, a basis of one gradient amplifies rounding most


@pytest.mark.filterwarnings("ignore:the parameters have no names")
@settings(derandomize=not os.environ.get("SKETCHY_FUZZ"))
@given(
    st.sampled_from(cases.KINDS).flatmap(lambda kind: st.tuples(st.just(kind), cases.options(kind))),
    cases.weights(),
    st.randoms(use_true_random=False),
)
def test_the_order_and_grouping_of_parameters_change_only_rounding(
    drawn: tuple[Any, dict[str, Any]], weights: list[cases.Weight], random: Any
) -> None:
    kind, options = drawn
    options = {k: v for k, v in options.items() if k not in FEW_DIGITS + TURNS} | FIXED
    assume(options.get("eps", 1.0) > 0)  # undamped, inverse roots of new directions amplify rounding
    made = [
        [weight.make(i).double().detach().requires_grad_() for i, weight in enumerate(weights)] for _ in "ab"
    ]
    order = random.sample(range(len(weights)), len(weights))
    cut = random.randint(0, len(weights))
    plain = kind(made[0], **options)
    groups = [{"params": [made[1][i] for i in some]} for some in (order[:cut], order[cut:]) if some]
    mixed = kind(groups, **options)
    for step in range(4):
        for params, optimizer in zip(made, (plain, mixed), strict=True):
            for i, p in enumerate(params):
                p.grad = cases.gradient("gaussian", weights[i], 1.0, step, i).double()
            optimizer.step()
        for p, q in zip(*made, strict=True):
            if p.numel():
                difference = (p - q).abs().max()
                assert difference <= TOLERANCE * LR, difference
