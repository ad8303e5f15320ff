"""Which weight takes which path, and the report that shows it."""

from typing import Any

import pytest
import torch
from torch import nn

import sketchy
from optim.optimizers import CASES, CLASSES, WEIGHTS, Case, advance, gradient, weights
from sketchy.optim.routing import looks_like_embedding_or_head

every_case = pytest.mark.parametrize("case", CASES, ids=str)


class Model(nn.Module):
    """A small language model: tied and untied ends, a convolution, norms, a frozen layer."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.body = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Conv1d(6, 5, 3), nn.Linear(6, 6))
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.gain = nn.Parameter(torch.ones(()))
        self.flat = nn.Parameter(torch.ones(1, 6, 1))
        self.lm_head = nn.Linear(6, 11, bias=False)
        if tied:
            self.lm_head.weight = self.words.weight


@pytest.mark.parametrize("tied", [False, True])
def test_param_groups_sets_ends_and_vectors_aside_and_lists_each_weight_once(tied: bool) -> None:
    model = Model(tied)
    groups = sketchy.param_groups(model, weight_decay=0.3)
    names = {group["path"]: [name for name, _ in group["params"]] for group in groups}
    assert names["sketch"] == ["body.0.weight", "body.2.weight", "body.3.weight"]
    assert set(names["adam"]) == {
        *("words.weight", "gain", "flat", "body.0.bias", "body.1.weight", "body.1.bias"),
        *("body.2.bias", "body.3.bias"),
        *(() if tied else ("lm_head.weight",)),
    }
    assert all(group["weight_decay"] == 0.3 for group in groups)
    for case in CLASSES:
        optimizer = case.make(sketchy.param_groups(model))
        params = [p for group in optimizer.param_groups for p in group["params"]]
        advance(optimizer, params, range(2))
        assert {row.path for row in optimizer.report()} == {"sketch", "adam"}


@pytest.mark.parametrize(
    ("model", "path"),
    [(nn.Linear(4, 4, bias=False), "sketch"), (nn.LayerNorm(4), "adam")],
    ids=["no vectors", "vectors only"],
)
def test_param_groups_has_no_empty_group(model: nn.Module, path: str) -> None:
    for case in CLASSES:
        optimizer = case.make(sketchy.param_groups(model))
        assert [group["path"] for group in optimizer.param_groups] == [path]


@pytest.mark.parametrize("bag", [nn.Embedding, nn.EmbeddingBag])
def test_an_embedding_is_known_by_its_class_whatever_its_name(bag: Any) -> None:
    model = nn.ModuleDict({"table": bag(9, 4), "mix": nn.Linear(4, 4)})
    sketched, aside = sketchy.param_groups(model)
    assert [name for name, _ in sketched["params"]] == ["mix.weight"]
    assert [name for name, _ in aside["params"]] == ["table.weight", "mix.bias"]


def test_param_groups_sketches_vectors_when_asked() -> None:
    sketched, aside = sketchy.param_groups(Model(tied=True), precondition_1d=True)
    assert "body.1.weight" in [name for name, _ in sketched["params"]]
    assert [name for name, _ in aside["params"]] == ["words.weight"]


@pytest.mark.parametrize(
    "name",
    [
        *("transformer.wte.weight", "transformer.wpe.weight", "model.embed_tokens.weight"),
        *("tok_embeddings.weight", "pos_embed", "token_emb.weight", "lm_head.weight", "head.weight"),
        *("classifier.weight", "unembed.weight", "module.head.fc.weight", "Embedding_0.weight"),
        *("output.weight", "model.output.weight", "score.weight", "qa_outputs.weight"),
        *("embeddings.word_embeddings.weight", "_orig_mod.wte.weight", "mlm_head.dense.weight"),
        *("fc.weight", "proj_out.weight", "module._orig_mod.output.weight", "module.fc.weight"),
    ],
)
def test_ends_of_a_model_are_known_by_name(name: str) -> None:
    assert looks_like_embedding_or_head(name, (64, 32))


@pytest.mark.parametrize(
    "name",
    [
        *("blocks.0.attn.qkv.weight", "layers.3.mlp.up_proj.weight", "multihead_attn.in_proj_weight"),
        *("headroom.weight", "ahead.weight", "conv1.weight", "member.weight", "0.weight"),
        *("patch_embed.proj.weight", "time_embed.0.weight", "embeddings.patch_embeddings.projection.weight"),
        *("layer.0.attention.output.dense.weight", "layers.0.attn.output.weight", "scores.0.weight"),
    ],
)
def test_other_names_are_not(name: str) -> None:
    assert not looks_like_embedding_or_head(name, (64, 32))


def test_without_names_a_vocabulary_is_known_by_its_size() -> None:
    assert looks_like_embedding_or_head(None, (50257, 768))
    assert looks_like_embedding_or_head(None, (768, 50257))
    assert looks_like_embedding_or_head(None, (32000, 4096))
    assert not looks_like_embedding_or_head(None, (16384, 16384))
    assert not looks_like_embedding_or_head(None, (4096, 1024))


PATHS = {
    "sketch": ["first.weight", "second.weight", "conv.weight"],
    "adam": ["tok_embed.weight", "bias", "row", "scale"],
    "none": ["nothing"],
}


@pytest.mark.parametrize("case", [case for case in CLASSES if case.name != "SketchyAdagrad"], ids=str)
def test_named_parameters_are_routed_by_shape_and_name(case: Case) -> None:
    report = case.make(zip(WEIGHTS, weights(), strict=True)).report()
    assert {path: [row.name for row in report if row.path == path] for path in PATHS} == PATHS
    unnamed = case.make(weights()).report()
    assert [row.path for row in unnamed][3] == "sketch"  # nothing says that it is an embedding
    assert [row.name for row in unnamed] == [f"0.{i}" for i in range(len(WEIGHTS))]


def test_sketchy_adagrad_sketches_everything() -> None:
    report = sketchy.SketchyAdagrad(zip(WEIGHTS, weights(), strict=True)).report()
    assert {row.path for row in report} == {"sketch", "none"}
    assert all(len(row.ranks) == 1 for row in report if row.path == "sketch")


@pytest.mark.parametrize("case", CLASSES, ids=str)
def test_a_groups_path_overrules_what_it_looks_like(case: Case) -> None:
    params = weights()
    forced = case.make(
        [
            {"params": list(zip(WEIGHTS, params, strict=True))[:3], "path": "adam"},
            {"params": list(zip(WEIGHTS, params, strict=True))[3:], "path": "sketch"},
        ]
    )
    advance(forced, params, range(3))
    paths = {row.name: row.path for row in forced.report()}
    assert all(paths[name] == "adam" for name in list(WEIGHTS)[:3])
    assert paths["tok_embed.weight"] == "sketch"
    assert all(p.isfinite().all() for p in params)
    vector = "adam" if case.name == "SketchySOAP" else "sketch"  # it needs two bases
    assert paths["bias"] == paths["row"] == vector


@every_case
def test_the_report_shows_what_the_state_holds(case: Case) -> None:
    params = weights()
    optimizer = case.make(zip(WEIGHTS, params, strict=True))
    assert all(row.escaped_share is None and row.skipped == 0 for row in optimizer.report())
    for step in range(4):
        for i, p in enumerate(params):
            p.grad = gradient(p, i, step)
        if step == 2:
            params[1].grad[0, 0] = torch.inf
        optimizer.step()
    report = optimizer.report()
    assert [row.name for row in report] == list(WEIGHTS) and len(report) == len(WEIGHTS)
    for row, p in zip(report, params, strict=True):
        state = optimizer.state.get(p, {})
        assert row.shape == tuple(p.shape)
        assert row.bytes == sum(tensor.nbytes for tensor in state.values())
        assert row.skipped == (row.name == "second.weight")
        bases = [value for key, value in state.items() if key.endswith("_basis")]
        assert [rank for rank in row.ranks if rank is not None] == [basis.shape[-1] for basis in bases]
        assert [e for e, r in zip(row.exact, row.ranks, strict=True) if r is not None] == [
            basis.shape[-1] == basis.shape[-2] for basis in bases
        ]
        if bases and not all(row.exact):
            masses = [value for key, value in state.items() if key.endswith("_escaped_mass")]
            assert (row.escaped_share > 0) == any(float(mass.max()) > 0 for mass in masses)
            assert 0 <= row.escaped_share <= 1 and row.certified_error >= 0
    assert report.bytes == sum(row.bytes for row in report)


def test_the_report_prints_one_line_for_each_parameter_unlike_the_others() -> None:
    params = weights()
    optimizer = sketchy.SketchyShampoo(zip(WEIGHTS, params, strict=True), rank=4)
    advance(optimizer, params, range(3))
    head, *lines = str(optimizer.report()).splitlines()
    lines, total = lines[: len(WEIGHTS)], lines[len(WEIGHTS)]
    assert head.split()[:5] == ["parameter", "shape", "path", "rank", "bytes"]
    assert [line.split()[0] for line in lines] == list(WEIGHTS)
    conv = lines[list(WEIGHTS).index("conv.weight")].split()
    assert conv[1:5] == ["4x3x2x2", "sketch", "4=", "4"]  # the first axis is kept whole
    assert conv[6].endswith("%") and conv[7].endswith("%") and conv[8] == "0"
    assert total.split() == ["total", f"{optimizer.report().bytes:,}", "0"]


@pytest.mark.parametrize("whiten", [True, False])
def test_the_report_says_if_its_certificates_are_those_of_whitened_gradients(whiten: bool) -> None:
    params = weights()
    optimizer = sketchy.SketchySOAP(zip(WEIGHTS, params, strict=True), rank=4, whiten=whiten)
    report = optimizer.report()
    assert [row.whitened for row in report] == [whiten and row.path == "sketch" for row in report]
    assert ("whitened by the other axis" in str(report)) == whiten


def test_the_escaped_share_is_that_of_the_compensated_sketch() -> None:
    p = weights()[0]
    optimizer = sketchy.SketchyShampoo([p], rank=3)
    advance(optimizer, [p], range(4))
    state = optimizer.state[p]
    shares = []
    for side, dim in (("left", 6), ("right", 5)):
        rho, lam = state[f"{side}_escaped_mass"][0], state[f"{side}_eigenvalues"][0]
        shares.append(float(dim * rho / (lam.sum() + dim * rho)))
    assert optimizer.report().rows[0].escaped_share == pytest.approx(max(shares))
