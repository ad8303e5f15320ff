"""Make an optimizer for a model, with the parameter groups that are usually written by hand."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from sketchy.optim.engine import Engine
from sketchy.optim.options import meant
from sketchy.optim.routing import is_vector, param_groups

NoDecay = str | Sequence[str] | Callable[[str, Tensor], bool] | None


def create_optimizer(
    model: nn.Module, optimizer: str | type[Engine] = "SketchySOAP", *, no_decay: NoDecay = (), **options: Any
) -> Engine:
    """One of our optimizers for all weights of a model that are trained.

    Its groups are those of `param_groups`: matrices to sketch; and vectors, embeddings and output heads for
    Adam's path. Frozen weights are left out, so with adapters (LoRA) the optimizer has those only.
    ``weight_decay`` is for weights with two or more axes: vectors, such as biases and the weights of norms,
    have none.

    Args:
        model: the model, with its weights frozen or not, and sharded or not, as they will be trained.
        optimizer: one of our optimizers, or its name.
        no_decay: weights that are not decayed either: parts of their names, such as ``"wte"`` or ``("wte",
            "wpe")``, or a function of name and weight. None: decay everything, also vectors.
        options: of the optimizer, such as ``lr``, ``weight_decay`` and ``rank``.

    >>> import sketchy
    >>> from torch import nn
    >>> net = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4))
    >>> optimizer = sketchy.create_optimizer(net, "SketchySOAP", lr=1e-3, weight_decay=0.1)
    >>> for group in optimizer.param_groups:
    ...     print(group["path"], group["weight_decay"], group["param_names"])
    sketch 0.1 ['1.weight']
    adam 0.1 ['0.weight']
    adam 0.0 ['1.bias']
    """
    cls = _class_of(optimizer)
    spared = _spared(model, no_decay)
    groups = []
    for group in param_groups(model, precondition_1d=bool(options.get("precondition_1d"))):
        del group["precondition_1d"]
        path = "auto" if cls.design.flat else group["path"]
        decayed = [(name, p) for name, p in group["params"] if name not in spared]
        rest = [(name, p) for name, p in group["params"] if name in spared]
        groups += [{"params": decayed, "path": path}] if decayed else []
        groups += [{"params": rest, "path": path, "weight_decay": 0.0}] if rest else []
    if not groups:
        raise ValueError(f"{type(model).__name__} has nothing to train: requires_grad is False everywhere")
    return cls(groups, **options)


def _class_of(optimizer: str | type[Engine]) -> type[Engine]:
    if not isinstance(optimizer, str):
        return optimizer
    known: dict[str, type[Engine]] = {}
    for cls in _subclasses(Engine):
        known.setdefault(cls.__name__, cls)  # a class of a user may have the name of one of ours
    if optimizer not in known:
        names = tuple(sorted(known))
        guess = meant(optimizer, names) or f"; there are {', '.join(names)}"
        raise ValueError(f"optimizer={optimizer!r}: no such optimizer{guess}")
    return known[optimizer]


def _subclasses(cls: type[Engine]) -> Iterator[type[Engine]]:
    for child in cls.__subclasses__():
        yield child
        yield from _subclasses(child)


def _spared(model: nn.Module, no_decay: NoDecay) -> set[str]:
    """The names of the weights that are not decayed."""
    if no_decay is None:
        return set()
    named = dict(model.named_parameters())
    found = {name for name, p in named.items() if is_vector(p)}
    if callable(no_decay):
        return found | {name for name, p in named.items() if no_decay(name, p)}
    for part in (no_decay,) if isinstance(no_decay, str) else no_decay:
        if not (those := {name for name in named if part in name}):
            raise ValueError(f"no_decay={part!r}: no parameter has this in its name")
        found |= those
    return found
