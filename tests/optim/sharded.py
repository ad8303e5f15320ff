"""Training with sharded weights: options, gradients, layouts, and how near they must be to one process."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

import sketchy
from ranks import layouts
from sketchy.core.corrected import _NOISE
from sketchy.optim.options import OPTIONS

F64 = torch.float64
LR = 0.01
# uneven parts, ranks without rows (3 x 11 on four), axes shorter and longer than the rank, a vector, a stack
SHAPES = [(13, 10), (7, 5), (3, 11), (9,), (16, 6), (3, 7, 4)]
SHAMPOO: list[tuple[str, dict[str, Any]]] = [
    ("SketchyShampoo", {"rank": 3}),
    ("SketchyShampoo", {"rank": 8, "graft": "factored", "update_every": 3}),
    ("SketchyShampoo", {"rank": 3, "graft": "rmsprop_normalized", "whiten": True, "row_norm": 0.9}),
    ("SketchyShampoo", {"rank": 3, "graft": "sgd", "one_sided": True, "start_step": 3}),
    ("SketchyShampoo", {"rank": 3, "graft": "adagrad", "betas": (0.9, 1.0), "nesterov": True}),
    ("SketchyShampoo", {"rank": 3, "graft": "adagrad_normalized", "update_every": 2}),
    ("SketchyShampoo", {"rank": 3, "graft": "rmsprop", "one_sided": True}),
    ("SketchyShampoo", {"rank": 3, "graft": "rows", "precondition_1d": True}),
    ("SketchyShampoo", {"rank": 3, "graft": "own", "start_step": 4}),
    ("SketchyShampoo", {"rank": 3, "graft": None}),
    ("SketchyShampoo", {"rank": 3, "block_size": 6}),
    ("SketchyShampoo", {"rank": 3, "solver": "exact"}),
    ("SketchyShampoo", {"rank": 3, "stacked": True}),
    ("SketchyShampoo", {"budget": 3.0, "budget_every": 2, "min_rank": 2}),
    ("SketchyShampoo", {"budget": 2.0, "budget_every": 2, "min_rank": 2, "stacked": True}),
    ("Shampoo", {}),
    ("Shampoo", {"roots_every": 3}),
    ("SketchyAdagrad", {"rank": 4}),
]
SOAP: list[tuple[str, dict[str, Any]]] = [
    ("SketchySOAP", {"rank": 3}),
    ("SketchySOAP", {"rank": 64}),
    ("SketchySOAP", {"rank": 3, "solver": "sweeps"}),
    ("SketchySOAP", {"rank": 3, "polar": 2, "update_every": 2, "weight_decay": 0.1}),
    ("SketchySOAP", {"rank": 2, "momentum_dtype": "int8", "graft": None}),
    ("SketchySOAP", {"rank": 2, "momentum_dtype": "int4"}),
    ("SketchySOAP", {"rank": 2, "momentum_dtype": "int8", "adam_dtype": "int8", "stacked": True}),
    ("SketchySOAP", {"rank": 2, "sketch_dtype": "bfloat16"}),
    ("SketchySOAP", {"budget": 3.0, "budget_every": 2, "min_rank": 2}),
    ("SketchySOAP", {"budget": 3.0, "budget_every": 3, "min_rank": 2, "momentum_dtype": "int4"}),
    ("SketchySOAP", {"rank": 3, "one_sided": True, "momentum_dtype": "bfloat16", "graft": "factored"}),
]

KINDS = ("plain", "troubled", "low rank", "extreme")


@dataclass(frozen=True)
class Setup:
    """What a run does, apart from where its weights lie."""

    name: str
    options: Mapping[str, Any]
    kind: str = "plain"
    steps: int = 8
    dtype: torch.dtype = F64

    @property
    def scales(self) -> Iterator[float]:
        """Of the gradients of each weight, if they are extreme."""
        return cycle((1e-20, 1e20) if self.kind == "extreme" else (1.0,))

    def stream(self) -> Iterator[list[Tensor]]:
        """The gradients of each step, as whole tensors."""
        generator = torch.Generator().manual_seed(0)
        for step in range(self.steps):
            grads = [torch.randn(shape, generator=generator, dtype=F64) for shape in SHAPES]
            if self.kind == "low rank":
                grads = [g[:, :1] @ g[:1] if g.dim() == 2 else g for g in grads]
            elif self.kind == "troubled" and step % 3 == 1:  # NaN on one rank only, and zeros
                grads[0][-1, -1], grads[1] = torch.nan, torch.zeros_like(grads[1])
            yield [(scale * g).to(self.dtype) for g, scale in zip(grads, self.scales, strict=False)]


def train(
    setup: Setup, place: tuple[Any, list[Any]] | None = None, noise: int = 0, split: Any = None
) -> tuple[list[Tensor], Any]:
    """The weights after some steps, as whole tensors, and the optimizer.

    ``noise``: a seed; gradients are multiplied by 1 + eps times random signs. ``split``: a mesh of replicas.
    """
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(shape, generator=generator, dtype=F64).to(setup.dtype) for shape in SHAPES]
    params = [torch.nn.Parameter(sharded(w, place)) for w in weights]
    options = {**setup.options} if split is None else {**setup.options, "split": split}
    optimizer = getattr(sketchy, setup.name)(params, lr=LR, **options)
    signs, eps = torch.Generator().manual_seed(noise), torch.finfo(setup.dtype).eps
    for grads in setup.stream():
        for p, grad in zip(params, grads, strict=True):
            if noise:
                grad = grad * (1 + eps * torch.randn(grad.shape, generator=signs, dtype=grad.dtype).sign())
            p.grad = sharded(grad, place)
        optimizer.step()
    return [whole(p.detach()) for p in params], optimizer


def sharded(x: Tensor, place: tuple[Any, list[Any]] | None) -> Tensor:
    if place is None:
        return x
    from torch.distributed.tensor import Replicate, distribute_tensor

    mesh, placements = place
    own = [Replicate() if getattr(q, "dim", 0) >= x.dim() else q for q in placements]
    return distribute_tensor(x, mesh, own, src_data_rank=None)


def whole(x: Any) -> Tensor:
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def distance(one: list[Tensor], other: list[Tensor]) -> float:
    """The largest difference, relative to the largest entry of the weight if that is above 1.

    (Steps are as long as the gradients, up to 1e20, with graft="sgd".)
    """
    pairs = zip(one, other, strict=True)
    return max(float((a - b).abs().max() / a.abs().max().clamp(min=1)) for a, b in pairs)


def expected(setup: Setup) -> tuple[Setup, list[Tensor], float]:
    """A setup, the weights of one process, and how far those of other layouts may be from them.

    SketchyShampoo in float64: rounding of the weights. SketchySOAP, and all in float32: ten times what one
    rounding of the gradients does to one process. SketchySOAP in float64: also what an entry adds that is
    noise and passes the threshold for noise. (A gradient 16 x 6 has ten directions less than its left side.
    In one run of twenty, what rounding makes of these passes.)
    """
    one, _ = train(setup)
    most = 5e3 * torch.finfo(setup.dtype).eps  # 1e-12 in float64
    if setup.name == "SketchySOAP" or setup.dtype != F64:
        moved = (train(setup, noise=seed)[0] for seed in range(1, 9))
        most += 10 * max(distance(one, other) for other in moved)
    if setup.name == "SketchySOAP" and setup.dtype == F64:
        most += LR * 2 * _NOISE * torch.finfo(F64).eps / OPTIONS["eps"].default
    return setup, one, most


def check_layouts(
    world: int, cases: list[tuple[Setup, list[Tensor], float]], *, strided: bool = True
) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    replicas = init_device_mesh("cpu", (world,))
    for setup, one, most in cases:
        for layout, *place in [*layouts(world, strided=strided), ("replicas", None, None)]:
            if layout == "replicas":
                found, optimizer = train(setup, split=replicas)
            else:
                found, optimizer = train(setup, tuple(place))
            assert distance(one, found) <= most, (setup, layout, distance(one, found), most)
            assert_replicas_agree(optimizer, (setup, layout))


def assert_replicas_agree(optimizer: Any, case: Any) -> None:
    """Weights and state that lie on several ranks are the same to the bit on all of them.

    These are plain tensors, and what the replicas of HSDP have of the same part.
    """
    from torch import distributed

    own = {}
    for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        for name, value in {"weight": p.detach(), **optimizer.state[p]}.items():
            own[i, name, _part_of(value)] = value.to_local() if hasattr(value, "to_local") else value
    found: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, own)
    for theirs in found:
        assert {key[:2] for key in own} == {key[:2] for key in theirs}, case
        for key in own.keys() & theirs.keys():
            assert torch.equal(own[key], theirs[key]), (case, key)


def _part_of(x: Any) -> tuple[int, ...]:
    """Which part of a sharded tensor lies here; nothing for a plain tensor."""
    if not hasattr(x, "placements"):
        return ()
    at = x.device_mesh.get_coordinate()
    return tuple(at[i] if hasattr(q, "dim") else -1 for i, q in enumerate(x.placements))
