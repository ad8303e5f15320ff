"""The optimizers of the tests: every class, with options that use other code paths."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from sketchy import Shampoo, SketchyAdagrad, SketchyShampoo, SketchySOAP
from sketchy.optim import SMALL

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


@dataclass(frozen=True)
class Case:
    """One optimizer of the table."""

    name: str
    cls: type[Optimizer]
    options: dict[str, Any] = field(default_factory=dict)

    def make(self, params: Iterable[Any], **options: Any) -> Any:
        return self.cls(params, **{**self.options, **options})

    def __str__(self) -> str:
        return self.name


# ranks below the sides of WEIGHTS, so that something escapes, and above some, so that some axes are exact
_PAPER = {"block_size": 4, "rank": 2, "start_step": 3, "update_every": 2, "graft": "rmsprop_normalized"}
_ALG3 = {
    "exponent": None,
    "rank": 3,
    "betas": (0.0, 1.0),
    "graft": None,
    "eps": 0.0,
    "weight_decay": 0.0,
    "solver": "exact",
}
CASES = (
    Case("SketchyShampoo", SketchyShampoo, {"rank": 3}),
    Case("SketchyShampoo-paper", SketchyShampoo, _PAPER),
    Case("SketchyShampoo-alg3", SketchyShampoo, _ALG3),
    Case(
        "SketchyShampoo-axes",
        SketchyShampoo,
        {"rank": 3, "merge_dims": 1, "precondition_1d": True, "moving_average_momentum": False},
    ),
    Case("SketchySOAP", SketchySOAP, {"rank": 3}),
    Case("SketchySOAP-blocks", SketchySOAP, {"rank": 2, "block_size": 4, "graft": None, "nesterov": False}),
    Case("SketchySOAP-rows", SketchySOAP, {"rank": 3, "row_norm": 0.9, "start_step": 2}),
    Case("SketchySOAP-small", SketchySOAP, {"rank": 2, **SMALL}),
    Case("SketchySOAP-sweeps", SketchySOAP, {"rank": 3, "solver": "sweeps"}),
    Case("SketchyAdagrad", SketchyAdagrad, {"rank": 3}),
    Case("SketchyAdagrad-int8", SketchyAdagrad, {"rank": 3, "betas": (0.9, 1.0), "momentum_dtype": "int8"}),
    Case("Shampoo", Shampoo),
    Case("Shampoo-one-sided", Shampoo, {"one_sided": True, "graft": "adagrad", "exponent": 0.5}),
    Case("Shampoo-roots", Shampoo, {"roots_every": 3, "block_size": 4}),
)
CLASSES = tuple(case for case in CASES if "-" not in case.name)

# two weights of one shape go through a step as one stack
WEIGHTS = {
    "first.weight": (6, 5),
    "second.weight": (6, 5),
    "conv.weight": (4, 3, 2, 2),
    "tok_embed.weight": (7, 4),
    "bias": (5,),
    "row": (1, 6),
    "scale": (),
    "nothing": (0, 3),
}


def generator(*key: int) -> torch.Generator:
    return torch.Generator().manual_seed(sum((k + 1) * 1000**i for i, k in enumerate(key)))


def weights(
    dtype: torch.dtype = F32, shapes: Iterable[tuple[int, ...]] = WEIGHTS.values()
) -> list[torch.nn.Parameter]:
    return [
        torch.nn.Parameter(torch.randn(shape, generator=generator(0, i), dtype=F64).to(dtype))
        for i, shape in enumerate(shapes)
    ]


def gradient(p: Tensor, index: int, step: int) -> Tensor:
    """The gradient of one parameter at one step: the same in every run, whatever the weights are."""
    return torch.randn(p.shape, generator=generator(7, index, step), dtype=F64).to(p.dtype)


def advance(optimizer: Optimizer, params: Sequence[Tensor], steps: Iterable[int], scale: float = 1.0) -> None:
    """Steps of one fixed stream of gradients."""
    for step in steps:
        for i, p in enumerate(params):
            p.grad = gradient(p, i, step).mul_(scale)
        optimizer.step()


def tensors(optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    """Everything that an optimizer changes: weights and state."""
    for g, group in enumerate(optimizer.param_groups):
        for i, p in enumerate(group["params"]):
            yield f"{g}.{i}", p.detach()
            for key, value in optimizer.state.get(p, {}).items():
                yield f"{g}.{i}.{key}", value


def snapshot(optimizer: Optimizer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors(optimizer)}


def stepped(
    case: Case, steps: int = 3, dtype: torch.dtype = F32, **options: Any
) -> tuple[Any, list[torch.nn.Parameter]]:
    params = weights(dtype)
    optimizer = case.make(params, **options)
    advance(optimizer, params, range(steps))
    return optimizer, params


def run(case: Case, steps: int = 4, **options: Any) -> dict[str, Tensor]:
    """The weights at the end of a run from the initial weights."""
    params = weights()
    optimizer = case.make(params, **options)
    advance(optimizer, params, range(steps))
    return snapshot(optimizer)


def options_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    return copy.deepcopy(
        [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    )


def assert_same(now: dict[str, Tensor], then: dict[str, Tensor]) -> None:
    """Bit for bit, dtypes included."""
    assert now.keys() == then.keys(), now.keys() ^ then.keys()
    for name, tensor in now.items():
        assert tensor.dtype == then[name].dtype, name
        assert torch.equal(tensor, then[name]), f"{name} differs by {(tensor - then[name]).abs().max()}"


def assert_near(
    now: dict[str, Tensor],
    then: dict[str, Tensor],
    tolerance: float,
    skip: tuple[str, ...] = ("basis", "coordinates"),
) -> None:
    """Within ``tolerance`` of the largest entry; eigenvectors have free signs, so bases are left out."""
    assert now.keys() == then.keys(), now.keys() ^ then.keys()
    for name, tensor in now.items():
        if not tensor.is_floating_point():  # codes: to the next one; two in a byte are not compared
            assert tensor.dtype == torch.uint8 or (tensor.int() - then[name].int()).abs().max() <= 1, name
        elif tensor.numel() and not name.endswith(skip):
            error, size = (tensor - then[name]).abs().max().item(), then[name].abs().max().item()
            assert error <= tolerance * size, f"{name} is off by {error:.2e}, of {size:.2e}"
