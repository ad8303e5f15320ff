"""Rows of different lengths in one batch give what each gives alone."""

import pytest
import torch

from cases import F32, F64
from sketchy.analysis.operations import Launches
from sketchy.core.padded import padded
from sketchy.core.tasks import gather, run

LENGTHS = ((2, 5), (1, 3), (3, 5), (2, 1))


def formula(x, y, s, factor, *, power):
    """Rows, their sums, and a number of each; padding with zeros changes neither."""
    factor = factor.unsqueeze(-1) if isinstance(factor, torch.Tensor) else factor
    rows = (x * factor + y.double()) ** power * s.unsqueeze(-1)
    return rows, rows.sum(-1), x.amax(-1)


def problems(rng, lengths=LENGTHS):
    return [
        (
            torch.rand(S, m, generator=rng, dtype=F64),
            torch.rand(S, m, generator=rng, dtype=F32),
            torch.rand(S, generator=rng, dtype=F64),
        )
        for S, m in lengths
    ]


@pytest.mark.parametrize("factors", [(2.0, 2.0, 2.0, 2.0), (1.0, 2.0, 3.0, 4.0)])
def test_a_batch_gives_what_each_gives_alone(blind, rng, factors):
    given = problems(rng)
    tasks = (padded(formula, *x, numbers=(f,), power=2) for x, f in zip(given, factors, strict=True))
    for found, x, f in zip(run(gather(tasks)), given, factors, strict=True):
        for part, expected in zip(found, formula(*x, f, power=2), strict=True):
            torch.testing.assert_close(part, expected, rtol=1e-15, atol=0)


def test_padding_hides_no_nan_and_spreads_none(blind, rng):
    given = problems(rng)
    given[1][0][0, 2] = torch.nan
    found = run(gather(padded(formula, *x, numbers=(1.0,), power=1) for x in given))
    assert [bool(sums.isnan().any()) for _, sums, _ in found] == [False, True, False, False]


@pytest.mark.cpu_only("it counts operations, and a stand-in has its own")
def test_more_lengths_need_no_more_operations(blind, rng):
    def operations(lengths):
        given = problems(rng, lengths)
        run(gather(padded(formula, *x, numbers=(1.0,), power=2) for x in given))  # keeps the layout
        with Launches() as count:
            run(gather(padded(formula, *x, numbers=(1.0,), power=2) for x in given))
        return count.found.total()

    assert operations(LENGTHS) == operations((*LENGTHS, (4, 7), (1, 9)))


@pytest.mark.cpu_only("elsewhere calls are batched")
def test_on_the_cpu_a_call_is_made_at_once(rng):
    (x, *_) = problems(rng)
    with pytest.raises(StopIteration) as stop:
        next(padded(formula, *x, numbers=(1.0,), power=2))
    torch.testing.assert_close(stop.value.value[1], formula(*x, 1.0, power=2)[1])
