"""The planned size of the state equals the size of a real state after the first steps."""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import pytest
import torch
from benchmarks.registry.dense_soap import SOAP
from benchmarks.registry.optimizers import build
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, Adafactor, AdamW, Optimizer

from sketchy.analysis.memory import Holder, by_group, fit, holders, human, planned, total
from sketchy.analysis.peers import SOAP_LONGEST
from sketchy.analysis.state import Held, Weight
from sketchy.experiments.training import state_bytes
from sketchy.optim import Shampoo, SketchyShampoo, SketchySOAP
from sketchy.optim.engine import Engine

F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
SHAPES: dict[str, tuple[int, ...]] = {
    "wide.weight": (6, 25),
    "wide.again": (6, 25),
    "tall.weight": (31, 4),
    "conv.weight": (4, 3, 2, 2),
    "embed.weight": (11, 4),
    "row": (1, 6),
    "bias": (7,),
    "scale": (),
}


def real(shapes: dict[str, tuple[int, ...]] = SHAPES, dtype: torch.dtype = F32) -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(torch.ones(shape, dtype=dtype)) for name, shape in shapes.items()}


def described(params: dict[str, nn.Parameter]) -> dict[str, Weight]:
    return {name: Weight.named(name, p.shape, p.dtype) for name, p in params.items()}


def walk(optimizer: Optimizer, params: Iterable[Tensor]) -> None:
    rng = torch.Generator().manual_seed(0)
    for _ in range(2):
        for p in params:
            p.grad = torch.randn(p.shape, generator=rng).to(p.dtype)
        optimizer.step()


def held(optimizer: Optimizer, *names: str) -> int:
    """The bytes of a real state, or of its entries of some names."""
    return sum(
        tensor.nbytes
        for state in optimizer.state.values()
        for name, tensor in state.items()
        if not names or name in names
    )


def holder(name: str, **options: Any) -> Holder:
    """By its name, or by its name and setting."""
    found = holders((2, 3), **options)
    return next(c for c in found if f"{c.name}, {c.setting}" == name or c.name == name)


PEERS: dict[str, Callable[[Any], Optimizer]] = {
    "SGD": lambda params: SGD(params, lr=0.1, momentum=0.9),
    "AdamW": AdamW,
    "Adafactor": Adafactor,
    "SOAP": SOAP,
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    # SOAP has no eigendecomposition in bfloat16
    [(name, dtype) for name in PEERS for dtype in (F32, F64, BF16) if (name, dtype) != ("SOAP", BF16)],
)
def test_a_peers_formula_is_its_real_state(name: str, dtype: torch.dtype) -> None:
    for one, shape in SHAPES.items():
        params = real({one: shape}, dtype)
        optimizer = PEERS[name](params.values())
        walk(optimizer, params.values())
        assert holder(name).held(described(params)[one]).total == held(optimizer), shape


def adafactor_with_momentum(named: list[tuple[str, nn.Parameter]]) -> Optimizer:
    optimization = pytest.importorskip("transformers.optimization")
    options = {"lr": 1e-3, "beta1": 0.9, "relative_step": False, "scale_parameter": False}
    return optimization.Adafactor([p for _, p in named], **options)


def of_registry(name: str, *packages: str) -> Callable[[Any], Optimizer]:
    def make(named: list[tuple[str, nn.Parameter]]) -> Optimizer:
        for package in packages:
            pytest.importorskip(package)
        return build(name, named)

    return make


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("label", "make"),
    [
        ("Muon, ", of_registry("muon")),
        ("Adafactor, momentum", adafactor_with_momentum),
        ("GaLore, rank 128", of_registry("po_galore", "pytorch_optimizer")),
        pytest.param(
            "AdamW, 8 bits", of_registry("torchao_adamw_8bit", "torchao"), marks=pytest.mark.slow
        ),  # it compiles
    ],
)
def test_the_formula_of_a_peer_that_treats_weights_differently_is_its_real_state(
    label: str, make: Callable[[Any], Optimizer]
) -> None:
    shapes = {name: shape for name, shape in SHAPES.items() if name != "row"}
    params = real({**shapes, "long.weight": (300, 140), "square.weight": (64, 64), "wte.weight": (512, 8)})
    optimizer = make(list(params.items()))
    walk(optimizer, params.values())
    assert total(described(params).values(), holder(label).held).total == state_bytes(optimizer)


@pytest.mark.parametrize(
    ("name", "momentum", "second"),
    [
        ("SGD", {"momentum_buffer"}, set()),
        ("AdamW", {"exp_avg"}, {"exp_avg_sq"}),
        ("Adafactor", set(), {"row_var", "col_var", "variance"}),
        ("SOAP", {"M"}, {"V", "L", "R", "Q_L", "Q_R"}),
    ],
)
def test_a_peers_momentum_and_second_moments_are_told_apart(
    name: str, momentum: set[str], second: set[str]
) -> None:
    params = real()
    optimizer = PEERS[name](params.values())
    walk(optimizer, params.values())
    found = total(described(params).values(), holder(name).held)
    assert found.momentum == (held(optimizer, *momentum) if momentum else 0)
    assert found.second_moment == (held(optimizer, *second) if second else 0)


@pytest.mark.parametrize("dtype", [F32, F64, BF16], ids=str)
@pytest.mark.parametrize("momentum_dtype", [None, BF16, "int8", "int4"], ids=str)
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (SketchyShampoo, {"rank": 3}),
        (SketchyShampoo, {"rank": 3, "graft": "rmsprop", "block_size": 5}),
        (SketchySOAP, {"rank": 3}),
        (SketchySOAP, {"rank": 3, "adam_dtype": "int8"}),
        (SketchySOAP, {"rank": 100}),
        (SketchySOAP, {}),
        (SketchyShampoo, {"block_size": 50}),
        (Shampoo, {"block_size": 5}),
    ],
    ids=str,
)
def test_ours_is_the_real_state_part_by_part(
    optimizer: type[Engine], options: dict[str, Any], dtype: torch.dtype, momentum_dtype: Any
) -> None:
    options = {**options, "momentum_dtype": momentum_dtype}
    params = real({**SHAPES, "large_embed.weight": (80, 60), "square.weight": (64, 64)}, dtype)
    made = optimizer(list(params.items()), **options)
    walk(made, params.values())
    found = total(described(params).values(), planned(optimizer, **options))
    assert found.total == held(made)
    assert found.momentum == held(made, "momentum", "momentum_scale", "momentum_coordinates")
    assert found.other == held(
        made, "step", "skipped", "turn", "row_moment", "column_moment", "graft_root", "direction_moment"
    )
    assert found.second_moment > 0


def test_the_table_of_contenders_is_that_of_the_real_optimizers_and_ours_at_each_rank() -> None:
    found = [(c.name, c.rank) for c in holders((2, 9))]
    peers = ["SGD", *["Adafactor"] * 2, *["AdamW"] * 2, "Muon", "GaLore", "Shampoo", "SOAP", "GGT"]
    ours = [(name, rank) for name in ("SketchyShampoo", "SketchySOAP") for rank in (2, 9)]
    assert found == [*((name, None) for name in peers), *ours, ("SketchySOAP", 9)]
    assert holders((2, 9))[-1].setting == "rank 9, int4"
    # with bits of one's own there is no row of ours with others
    assert [c.rank for c in holders((2, 9), momentum_dtype="int8") if c.name == "SketchySOAP"] == [2, 9]


def test_numbers_of_a_4096_x_1024_weight() -> None:
    """The number of floats, counted by hand: the test would notice padding or a term counted twice."""
    m, n = 4096, 1024
    weight = Weight((m, n))
    floats = {}
    for c in holders((64,)):
        held = c.held(weight)
        floats.setdefault(c.name, (held.momentum / 4, held.second_moment / 4))
        floats[f"{c.name}, {c.setting}"] = (held.momentum / 4, held.second_moment / 4)
    assert floats["SGD"] == (m * n, 0)
    assert floats["AdamW"] == (m * n, m * n)
    assert floats["Adafactor"] == (0, m + n)
    assert floats["SOAP"] == (m * n, 2 * m * m + 2 * n * n + m * n)
    assert floats["GGT"] == (0, 200 * m * n)
    assert floats["Muon"] == (m * n, 0)
    assert floats["GaLore"] == (128 * m, 128 * (m + n))
    assert floats["Adafactor, momentum"] == (m * n, m + n)
    assert floats["AdamW, 8 bits"] == (m * n / 4 + m * n / 256,) * 2
    # four blocks, two sides each: a basis of 1024 x 1024, and eigenvalues, mass and bound of 8 bytes
    assert floats["Shampoo"] == (m * n, 8 * (1024 * 1024 + 2 * (1024 + 2)))
    sketches = 64 * (m + n) + 2 * 2 * (64 + 2)
    assert floats["SketchyShampoo"] == (m * n, sketches)
    assert floats["SketchySOAP"] == (m * n, sketches + 2 * 65 * 65)


def test_soap_has_no_factor_for_a_side_beyond_its_authors_limit() -> None:
    rule = holder("SOAP").held
    m, n = SOAP_LONGEST, SOAP_LONGEST + 1
    assert rule(Weight((n, 3))).second_moment == 4 * (3 * n + 2 * 9)
    assert rule(Weight((m, 3))).second_moment == 4 * (3 * m + 2 * 9 + 2 * m * m)


def test_weights_without_entries_cost_ours_two_counters() -> None:
    assert planned(SketchyShampoo)(Weight((0, 5))) == Held(other=2 * 8)


def test_groups_sum_to_the_whole_and_follow_the_paths_of_the_optimizer() -> None:
    params = real()
    weights = described(params)
    paths = {row.name: row.path for row in SketchyShampoo(list(params.items())).report()}
    groups = {name: weight.group for name, weight in weights.items()}
    assert {name for name, group in groups.items() if group == "matrices"} == {
        name for name, path in paths.items() if path == "sketch"
    }
    assert groups["embed.weight"] == "embeddings"
    assert {groups[name] for name in ("row", "bias", "scale")} == {"vectors"}
    parts = by_group(weights.values(), holder("AdamW").held)
    assert list(parts) == ["matrices", "embeddings", "vectors"]
    assert sum(part.total for part in parts.values()) == 8 * sum(p.numel() for p in params.values()) + 4 * 8


# ---- budgets

OURS = pytest.mark.parametrize("optimizer", [SketchyShampoo, SketchySOAP])
WEIGHTS = list(described(real()).values())


@cache
def all_needs(optimizer: type[Engine]) -> dict[int, int]:
    return {rank: total(WEIGHTS, planned(optimizer, rank=rank)).total for rank in range(2, 32)}


@OURS
@settings(max_examples=40)
@given(budget=st.integers(4_000, 40_000))
def test_the_largest_rank_is_the_largest_of_all_that_fit(optimizer: type[Engine], budget: int) -> None:
    needs = all_needs(optimizer)
    fitting = [rank for rank, size in needs.items() if size <= budget]
    if not fitting:
        with pytest.raises(
            ValueError, match=f"{optimizer.__name__} needs at least {human(needs[2])} .*rank 2"
        ):
            fit(optimizer, WEIGHTS, budget)
        return
    found = fit(optimizer, WEIGHTS, budget)
    assert found.rank == max(fitting) and found.bytes == needs[max(fitting)] <= budget


@OURS
@settings(max_examples=40)
@given(budget=st.integers(7_000, 40_000), more=st.integers(0, 5_000))
def test_a_rank_for_each_weight_fits_and_grows_with_the_budget(
    optimizer: type[Engine], budget: int, more: int
) -> None:
    found, larger = (fit(optimizer, WEIGHTS, size) for size in (budget, budget + more))
    assert found.ranks_bytes <= budget
    assert all(larger.ranks[weight] >= rank for weight, rank in found.ranks.items())


@OURS
def test_a_real_optimizer_with_the_planned_ranks_holds_the_planned_bytes(optimizer: type[Engine]) -> None:
    params = real()
    weights = described(params)
    found = fit(optimizer, list(weights.values()), 9_000)
    groups: list[dict[str, Any]] = [
        {
            "params": [(name, p)],
            **({"rank": found.ranks[weights[name]]} if weights[name] in found.ranks else {}),
        }
        for name, p in params.items()
    ]
    made = optimizer(groups)
    walk(made, params.values())
    assert held(made) == found.ranks_bytes <= 9_000
    assert len(set(found.ranks.values())) > 1


def test_every_weight_pays_the_same_share_of_its_size() -> None:
    weights = [Weight((4096, 1024)), Weight((1024, 1024)), Weight((2048, 512)), Weight((4096, 4096))]
    found = fit(SketchyShampoo, weights, 110 << 20)
    shares = [rank * sum(weight.sides) / weight.count for weight, rank in found.ranks.items()]
    assert 0.05 < min(shares) < max(shares) < 1.02 * min(shares)
    assert found.ranks_bytes > 0.99 * (110 << 20)  # and little is left over


@OURS
def test_with_room_for_everything_nothing_is_cut(optimizer: type[Engine]) -> None:
    found = fit(optimizer, WEIGHTS, 1 << 30)
    assert found.rank == 31
    assert {weight.shape: rank for weight, rank in found.ranks.items()} == {
        (6, 25): 25, (31, 4): 31, (4, 3, 2, 2): 12,
    }  # fmt: skip
    assert found.bytes == found.ranks_bytes


def test_where_nothing_is_sketched_there_is_no_rank() -> None:
    found = fit(SketchyShampoo, [Weight((7,))], 1000)
    assert found.rank is None and not found.ranks and found.bytes == found.ranks_bytes == 2 * 28 + 2 * 8


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (20_480, "20.0 KiB"), (3 << 40, "3.00 TiB")],
)
def test_sizes_read_well(size: int, text: str) -> None:
    assert human(size) == text
