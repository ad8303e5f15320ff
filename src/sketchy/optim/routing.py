"""Choose the path of each parameter: sketch for matrices; Adam for vectors, embeddings and output heads.

The gradient of an embedding has few nonzero rows, and each class of a head has its own gradient scale. A
second moment for each entry suits both.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import nn

_NAMES = re.compile(
    # the last part of a dotted name: wte, embed_tokens, pos_embed, unembed; but not patch_embed.proj
    r"(^|[._])(wte|wpe|\w*embed\w*|\w*_emb|emb|score|qa_outputs)(\.weight)?$"
    # any part: lm_head, head.fc, classifier; but not multi_head_attention
    r"|(^|\.)(\w*_)?(head|classifier)(\.|$)"
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
        vector = sum(size != 1 for size in p.shape) < 2 and not options.get("precondition_1d")
        aside = vector or id(p) in embeddings or looks_like_embedding_or_head(name, tuple(p.shape))
        groups["adam" if aside else "sketch"].append((name, p))
    return [{"params": params, "path": path, **options} for path, params in groups.items() if params]


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
