"""Compiled steps: the argument ``compile``. A wave becomes one graph of operations for torch.compile.

A wave's step is traced for its shapes and options (`make_fx`), on the path of accelerators, which reads no
value. So the graph has neither branches nor Python. It is traced again if a shape or an option changes, but
not for a new learning rate or weight decay: these are tensors in the graph.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils import _pytree as trees

from sketchy.core.tasks import fused, gather, run
from sketchy.optim.stack import Settings, Stack
from sketchy.optim.step import step

MOST = 32  # graphs of one optimizer: if there are more, some option changes all the time
_COSTLY = {"pow", "sqrt", "rsqrt", "div", "reciprocal", "exp2", "log2"}
_LARGE = 2**13  # numbers that a large tensor has at least
_MUCH = 8  # so many times more than a small one
_VALUES = ("lr", "weight_decay")  # options that are tensors in a graph


class Compiled:
    """The compiled steps of an optimizer. Copies and pickles keep the settings, and no graph."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = dict(settings)  # of torch.compile
        self.graphs: dict[Any, tuple[Callable[..., None], list[Any]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"settings": self.settings, "graphs": {}}

    def run(self, wave: Sequence[Stack]) -> bool:
        """Step a wave. Return False, and do nothing, if there are too many graphs already."""
        inputs = [_inputs(stack) for stack in wave]
        tensors, spec = trees.tree_flatten(inputs)
        key = (*map(_fixed, wave), *((x.shape, x.stride(), x.dtype, x.device) for x in tensors))
        if key not in self.graphs:
            if len(self.graphs) >= MOST:
                return False
            self.graphs[key] = self._made(wave, tensors, spec), [stack.plan for stack in wave]  # ids stay
            if len(self.graphs) == MOST:
                warnings.warn(
                    f"compile: {MOST} graphs were compiled, for as many sets of shapes and options; further"
                    " ones are stepped without a graph. Options other than lr and weight_decay, such as"
                    " betas, should stay the same, and the same weights should have gradients",
                    stacklevel=6,
                )
        self.graphs[key][0](*tensors)
        return True

    def _made(self, wave: Sequence[Stack], tensors: Sequence[Tensor], spec: Any) -> Callable[..., None]:
        from torch.fx.experimental.proxy_tensor import make_fx

        def stepped(*flat: Tensor) -> None:
            given = trees.tree_unflatten(list(flat), spec)
            run(gather(step(_again(stack, *some)) for stack, some in zip(wave, given, strict=True)))

        with fused():
            graph = make_fx(stepped, tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors)
        small_first_(graph)
        compiled: Callable[..., None] = torch.compile(graph, **{"dynamic": False, **self.settings})
        return compiled


def small_first_(module: GraphModule) -> None:
    """Change a graph: costly small tensors are stored before large ones are computed from them.

    The compiler would compute a small one again for each entry of a large one, for instance a float64 power
    for each entry of a weight. It stores what `torch.as_strided` reads, so this is put between the two.
    """
    costly = set[Node]()
    for node in module.graph.nodes:
        view, x = _is_view(node), node.meta.get("val")
        if not (view or _is_pointwise(node)) or not isinstance(x, Tensor):
            continue
        for given in node.all_input_nodes:
            reader, small = node, given
            while _is_view(small):
                reader, small = small, small.all_input_nodes[0]
            if not view and small in costly and x.numel() >= max(_LARGE, _MUCH * small.meta["val"].numel()):
                y = small.meta["val"]
                with module.graph.inserting_after(small):
                    stored = module.graph.call_function(torch.as_strided, (small, y.shape, y.stride()))
                reader.replace_input_with(small, stored)
            elif given in costly:
                costly.add(node)
        if _name(node) in _COSTLY:
            costly.add(node)
    module.recompile()


def _name(node: Node) -> str:
    """The name of an operation of torch, without that of a variant or of the library."""
    schema = getattr(node.target, "_schema", None)
    return "" if schema is None else schema.name.removeprefix("aten::").removesuffix("_")


def _is_pointwise(node: Node) -> bool:
    return torch.Tag.pointwise in getattr(node.target, "tags", ()) or _name(node) == "_to_copy"


def _is_view(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(r.alias_info and not r.alias_info.is_write for r in schema.returns)


def settings_of(compile: bool | Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The keyword arguments of torch.compile; None: steps are not compiled."""
    if isinstance(compile, Mapping):
        return {"fullgraph": True, **compile}
    if not isinstance(compile, bool):
        raise TypeError(
            f"compile={compile!r}: must be True, False, or a dict of arguments for torch.compile,"
            ' as {"mode": "reduce-overhead"}'
        )
    return {"fullgraph": True} if compile else None


Inputs = tuple[list[Tensor], list[Tensor], list[dict[str, Tensor]], dict[str, Tensor]]


def _inputs(stack: Stack) -> Inputs:
    """The tensors that a step of a stack reads and writes: weights, gradients, state, and numbers."""
    if stack.place is not None:
        raise ValueError("compile: sharded weights can't be stepped by a graph yet; leave this argument away")
    device = stack.params[0].device
    host = {name for name, slot in stack.plan.slots.items() if slot.on_host}
    states = [{name: x for name, x in state.items() if name not in host} for state in stack.states]
    numbers = {name: _on(device, stack.group[name]) for name in _VALUES if _in_graph(stack.group[name])}
    grads = [p.grad for p in stack.params if p.grad is not None]
    return [p.detach() for p in stack.params], grads, states, numbers


def _again(
    stack: Stack,
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    states: Sequence[dict[str, Tensor]],
    numbers: Mapping[str, Tensor],
) -> Stack:
    """The same stack with other tensors."""
    group = {**stack.group, **numbers}
    return Stack(params, states, stack.plan, group, stack.due, lambda: grads, roots=stack.roots)


def _fixed(stack: Stack) -> Any:
    """What a graph depends on, besides the shapes of its tensors."""
    return id(stack.plan), len(stack.params), stack.due, stack.roots, *_options(stack.group)


def _options(group: Settings) -> list[Any]:
    from sketchy.optim.options import OPTIONS  # it imports the parts, which import stacks

    return [_in_graph(group[name]) if name in _VALUES else group[name] for name in OPTIONS if name in group]


def _in_graph(value: float | Tensor) -> bool:
    """Whether a number is a tensor in the graph. Zero decay is not: nothing has to be computed for it."""
    return isinstance(value, Tensor) or value != 0


def _on(device: torch.device, value: float | Tensor) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().reshape(()).to(device, torch.float64)
    return torch.full((), value, dtype=torch.float64, device=device)
