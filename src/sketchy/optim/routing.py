"""Choose the path of each parameter: sketch for matrices; Adam for vectors, embeddings and output heads.

The gradient of an embedding has few nonzero rows, and each class of a head has its own gradient scale. A
second moment for each entry suits both.
"""

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import nn

_NAMES = re.compile(
    # the last part of a dotted name: wte, embed_tokens, pos_embed, unembed; but not patch_embed.proj
    r"(^|[._])(wte|wpe|\w*embed\w*|\w*_emb|emb|score|qa_outputs)(\.weight)?$"
    # any part: lm_head, head.fc, classifier; but not multi_head_attention. Adapters of an embedding
    r"|(^|\.)(\w*_)?(head|classifier|lora_embedding_[ab])(\.|$)"
    # only at the top level of a model (wrapped or not); deeper ones are layers of a block
    r"|^((module|_orig_mod)\.)*((\w+\.)?output|fc|proj_out)\.weight$"
)
# If an axis is this long, and this many times as long as the other, it is a vocabulary: 32000 x 4096,
# 50257 x 768.
_VOCABULARY, _ASPECT = 16384, 6


@lru_cache(maxsize=4096)
def looks_like_embedding_or_head(name: str | None, shape: tuple[int, ...]) -> bool:
    """Whether a weight is an embedding or a head, judged by its name (if it has one) and its shape."""
    if name is not None and _NAMES.search(name.lower()):
        return True
    longest = max(shape, default=0)
    rest = 1
    for size in shape:
        rest *= size
    return longest >= _VOCABULARY and longest * longest >= _ASPECT * rest


def route(
    shape: tuple[int, ...], name: str | None, options: Mapping[str, Any], *, least_axes: int, flat: bool
) -> str:
    """The path of one parameter: ``sketch`` or ``adam``.

    ``least_axes``: a weight with fewer axes longer than one always takes Adam's path. ``flat``: the optimizer
    flattens weights to vectors, so it can sketch weights of all shapes.
    """
    axes = sum(size != 1 for size in shape)
    if axes < least_axes:
        return "adam"
    if options["path"] != "auto":
        return str(options["path"])
    if flat:
        return "sketch"
    if axes < 2:
        return "sketch" if options.get("precondition_1d") and axes == 1 else "adam"
    return "adam" if looks_like_embedding_or_head(name, shape) else "sketch"


def is_vector(p: torch.Tensor) -> bool:
    """Whether fewer than two axes are longer than one."""
    return sum(size != 1 for size in p.shape) < 2


def param_groups(model: nn.Module, **options: Any) -> list[dict[str, Any]]:
    """Split a model's named parameters into two groups: those to sketch, and those for Adam's path.

    Vectors, embeddings, weights tied to an embedding and output heads (found by name) take Adam's path. A
    parameter that is used twice is listed once. ``options`` are added to both groups. Empty groups are left
    out, because torch does not accept an empty group together with named ones.

    >>> import sketchy
    >>> from torch import nn
    >>> net = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4))
    >>> print(*[group["path"] for group in sketchy.param_groups(net)])
    sketch adam
    """
    kinds = (nn.Embedding, nn.EmbeddingBag)
    embeddings = {id(p) for m in model.modules() if isinstance(m, kinds) for p in m.parameters(recurse=False)}
    groups: dict[str, list[tuple[str, torch.Tensor]]] = {"sketch": [], "adam": []}
    for name, p in model.named_parameters():  # lists a tied weight once
        if not p.requires_grad:
            continue
        vector = is_vector(p) and not options.get("precondition_1d")
        aside = vector or id(p) in embeddings or looks_like_embedding_or_head(name, tuple(p.shape))
        groups["adam" if aside else "sketch"].append((name, p))
    return [{"params": params, "path": path, **options} for path, params in groups.items() if params]


def warn_of_unnamed(groups: Iterable[Mapping[str, Any]], path: Callable[..., str]) -> None:
    """Warn if matrices without names would be sketched, of which one looks like a small embedding.

    ``path``: see `optim.plan.Design`. Weights whose path was chosen need no name.
    """
    unnamed: list[tuple[int, ...]] = []
    for group in groups:
        if "param_names" not in group and group["path"] == "auto":
            unnamed += (tuple(p.shape) for p in group["params"] if path(p.shape, None, group) == "sketch")
            unnamed += (tuple(p.shape) for p in group["params"] if p.dim() == 1)
    if found := next(small_embeddings(unnamed), None):
        warnings.warn(
            f"the parameters have no names, and one of shape {found} looks like an embedding or an output"
            " head: it is sketched. Pass model.named_parameters() instead of model.parameters(), so that it"
            ' uses Adam, or set path="sketch" in its group',
            stacklevel=3,
        )


def small_embeddings(shapes: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """The shapes (V, d) of embeddings and heads among the shapes of a model's parameters.

    Some other matrix has inputs of size d, but V is no size of anything else: no matrix has such inputs, and
    there is no bias of this length. There are one or two of them, because layers of a block repeat.
    """
    matrices = Counter(shape for shape in shapes if len(shape) == 2 and 0 not in shape)
    for (rows, width), times in matrices.items():
        others = [shape for shape in matrices if shape != (rows, width)]
        lengths = {shape[0] for shape in shapes if len(shape) == 1}.union(*others)
        if times <= 2 and rows > 2 and rows not in lengths and any(shape[-1] == width for shape in others):
            yield rows, width


def name_in(groups: Sequence[Mapping[str, Any]], g: int, i: int) -> str:
    """The name of the i-th parameter of the g-th group, for a message."""
    names = groups[g].get("param_names")
    return f"parameter {names[i]!r}" if names else f"parameter {i} of group {g}"


def names_of(groups: Iterable[Mapping[str, Any]]) -> dict[torch.Tensor, str]:
    """The names of the parameters that have one."""
    return {
        p: name
        for group in groups
        for p, name in zip(group["params"], group.get("param_names", ()), strict=False)
    }
