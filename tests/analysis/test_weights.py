"""Where weights come from: shapes, models that are never allocated, headers of files."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sketchy import SketchyShampoo, param_groups
from sketchy.analysis.weights import of_factory, of_file, of_model, of_shapes
from sketchy.experiments import architectures

PLACE = "sketchy.experiments.architectures"


def test_shapes_are_read_and_repeated_ones_count_again() -> None:
    found = of_shapes(["4096x1024", "768", "4096x1024", "3x3x64x64", "50257x768"])
    assert list(found) == ["4096x1024", "768", "4096x1024 #2", "3x3x64x64", "50257x768"]
    assert found["4096x1024"] == found["4096x1024 #2"]
    assert [weight.path for weight in found.values()] == ["sketch", "adam", "sketch", "sketch", "adam"]


@pytest.mark.parametrize("text", ["", "x", "4x", "-3x4", "4.5x2", "4 x 2 y", "a"])
def test_a_shape_that_is_none_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="must be whole numbers joined by x, such as 4096x1024"):
        of_shapes([text])


def tied() -> nn.ModuleDict:
    words, out = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
    out.weight = words.weight
    return nn.ModuleDict({"words": words, "mid": nn.Linear(4, 4), "out": out})


def test_a_model_is_seen_as_the_optimizer_sees_its_groups() -> None:
    model = tied()
    model["mid"].requires_grad_(False).get_parameter("weight").requires_grad_(True)
    report = SketchyShampoo(param_groups(model)).report()
    assert {name: weight.path for name, weight in of_model(model).items()} == {
        row.name: row.path for row in report
    } == {"words.weight": "adam", "mid.weight": "sketch"}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "weights", "tensors"),
    [
        ("gpt2_xl", 1_557_611_200, 580),
        ("llama2_7b", 6_738_415_616, 291),
        ("llama2_70b", 68_976_648_192, 723),
    ],
)
def test_published_models_have_their_published_sizes_and_take_no_memory(
    name: str, weights: int, tensors: int
) -> None:
    found = of_factory(f"{PLACE}:{name}")
    assert sum(weight.count for weight in found.values()) == weights and len(found) == tensors
    aside = {name for name, weight in found.items() if weight.group == "embeddings"}
    assert aside == {
        "gpt2_xl": {"transformer.wte.weight", "transformer.wpe.weight"},
    }.get(name, {"model.embed_tokens.weight", "lm_head.weight"})


def test_building_draws_no_numbers_and_leaves_the_generator_alone() -> None:
    before = torch.get_rng_state()
    of_factory(f"{PLACE}:gpt2_xl")
    assert torch.get_rng_state().equal(before)


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("json", "must be package.module:function"),
        (":gpt2", "must be package.module:function"),
        ("no_such_package.models:f", "there is no module no_such_package"),
        (f"{PLACE}:gpt5", f"module {PLACE} has no gpt5"),
        ("sketchy:__version__", "must be a function or class that can be called; it is a str"),
        ("collections:OrderedDict", "must build a torch.nn.Module; it built a OrderedDict"),
        ("torch.nn:Linear", "building it failed: TypeError: .*missing 2 required positional arguments"),
    ],
)
def test_a_model_that_can_not_be_built_is_told_in_a_sentence(address: str, problem: str) -> None:
    with pytest.raises(ValueError, match=f"model={address!r}: {problem}"):
        of_factory(address)


def test_a_module_in_the_current_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_net_of_today.py").write_text("import torch\ndef net(): return torch.nn.Linear(3, 2)\n")
    (tmp_path / "my_slip_of_today.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    assert [weight.shape for weight in of_factory("my_net_of_today:net").values()] == [(2, 3), (2,)]
    with pytest.raises(ValueError, match="importing it failed: ZeroDivisionError: division by zero"):
        of_factory("my_slip_of_today:net")


# ---- files


def safetensors(path: Path, entries: dict[str, Any]) -> Path:
    """A file of the published format, with a header and no data: shapes are all that is read."""
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    return path


def test_a_safetensors_file_is_read_by_its_header_alone(tmp_path: Path) -> None:
    entries = {
        "__metadata__": {"format": "pt"},
        "layers.0.weight": {"dtype": "BF16", "shape": [65536, 65536], "data_offsets": [0, 2**33]},
        "lm_head.weight": {"dtype": "F32", "shape": [9, 4], "data_offsets": [0, 0]},
        "positions": {"dtype": "I64", "shape": [4], "data_offsets": [0, 0]},
    }
    found = of_file(safetensors(tmp_path / "model.safetensors", entries))
    assert {name: (w.shape, w.dtype, w.path) for name, w in found.items()} == {
        "layers.0.weight": ((65536, 65536), torch.bfloat16, "sketch"),
        "lm_head.weight": ((9, 4), torch.float32, "adam"),
    }


SHAPES = [
    "[-3, 4]", "[3.5, 4]", "[3.0]", "[true, 2]", "[[3, 4]]", '["3"]', "[null]", "7", '"34"', "null", "{}",
    "[9223372036854775808]", "[" * 100_000 + "]" * 100_000, f"[{'9' * 401}]", f"[{', '.join('1' * 65)}]",
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape[:20])
def test_a_shape_in_a_header_that_no_tensor_has_is_told(shape: str, tmp_path: Path) -> None:
    header = f'{{"w": {{"dtype": "F32", "shape": {shape}, "data_offsets": [0, 0]}}}}'.encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(ValueError, match="is not a safetensors file") as error:
        of_file(tmp_path / "x.safetensors")
    assert "\n" not in str(error.value) and len(str(error.value)) < 400 + len(str(tmp_path))


@pytest.mark.parametrize(
    "wrap",
    [lambda state: state, lambda state: {"state_dict": state, "epoch": 3}],
    ids=["plain", "checkpoint"],
)
def test_a_saved_state_dict_is_the_model_again(tmp_path: Path, wrap: Any) -> None:
    model = tied()
    model.register_buffer("steps", torch.zeros(3, dtype=torch.int64))
    torch.save(wrap(model.state_dict()), tmp_path / "model.pt")
    found = of_file(tmp_path / "model.pt")
    assert {name: w.shape for name, w in found.items()} == {
        "words.weight": (9, 4), "mid.weight": (4, 4), "mid.bias": (4,),
    }  # fmt: skip


def test_a_saved_model_of_a_published_size_is_read_without_its_weights(tmp_path: Path) -> None:
    with torch.device("meta"):
        state = architectures.llama2_7b().state_dict()
    torch.save(state, tmp_path / "llama.pt")
    found = of_file(tmp_path / "llama.pt")
    assert sum(weight.count for weight in found.values()) == 6_738_415_616


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("x.safetensors", b"", "is not a safetensors file"),
        ("x.safetensors", b"\xff" * 64, "is not a safetensors file"),
        ("x.safetensors", struct.pack("<Q", 2) + b"[]", "is not a safetensors file"),
        ("x.safetensors", struct.pack("<Q", 2) + b"{}", "contains no floating-point tensor"),
        ("x.pt", b"nothing that torch saved", r"torch.load\(weights_only=True\) cannot read it"),
        ("x.txt", b"", "must end in .safetensors"),
    ],
)
def test_a_file_that_holds_no_weights_is_told(
    tmp_path: Path, name: str, content: bytes, problem: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=problem) as error:
        of_file(tmp_path / name)
    assert "\n" not in str(error.value)


def test_a_saved_thing_that_is_no_state_dict_is_told(tmp_path: Path) -> None:
    torch.save(torch.ones(3), tmp_path / "x.pt")
    with pytest.raises(ValueError, match="must contain a state_dict; it contains a Tensor"):
        of_file(tmp_path / "x.pt")


@pytest.mark.parametrize("name", ["none.pt", "none.safetensors"])
def test_a_missing_file_is_the_systems_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError):
        of_file(tmp_path / name)
