"""`sketchy memory` as a person and as a program use it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tyro")
pytest.importorskip("matplotlib")

import torch
from torch import nn

import sketchy
from sketchy import SketchyShampoo, SketchySOAP
from sketchy.analysis.peers import SOAP_LONGEST
from sketchy.analysis.spectra import SpectrumMonitor
from sketchy.analysis.traffic import on_ranks
from sketchy.analysis.weights import of_shapes
from sketchy.cli.memory import memory
from sketchy.core.arguments import parse_bytes

SHAPES = ("300x200", "200x200", "200x200", "50257x20", "300")
PAGE = (Path(__file__).parents[2] / "docs" / "memory.md").read_text()
SMALL = "memory_command_models"


def mistake(capsys: pytest.CaptureFixture[str], **options: Any) -> str:
    """The message for a mistake: one line, with exit status 2 and no standard output."""
    with pytest.raises(SystemExit) as stop:
        memory(**options)
    said = capsys.readouterr()
    assert stop.value.code == 2 and said.out == ""
    assert said.err.startswith("sketchy memory: ") and said.err.count("\n") == 1
    return said.err.removeprefix("sketchy memory: ").strip()


def found(capsys: pytest.CaptureFixture[str], **options: Any) -> Any:
    memory(**options, json=True)
    return json.loads(capsys.readouterr().out)


def of(result: Any, optimizer: str, rank: int | None = None) -> Any:
    return next(r for r in result["optimizers"] if (r["optimizer"], r["rank"]) == (optimizer, rank))


# ---- published models, by independent arithmetic


def gpt2_xl() -> list[tuple[int, ...]]:
    width, layers = 1600, 48
    matrices = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    vectors = [(3 * width,), (width,), (4 * width,), (width,), *[(width,)] * 4]  # biases; two layer norms
    return [(50257, width), (1024, width), *(matrices + vectors) * layers, (width,), (width,)]


def llama2_7b() -> list[tuple[int, ...]]:
    width, hidden, layers = 4096, 11008, 32
    block = [(width, width)] * 4 + [(hidden, width), (hidden, width), (width, hidden), (width,), (width,)]
    return [(32000, width), *block * layers, (width,), (32000, width)]


@pytest.mark.parametrize("published", [gpt2_xl, llama2_7b])
def test_a_published_model_takes_under_5_seconds_and_a_gibibyte_and_its_totals_are_the_formulas(
    published: Any, tmp_path: Path
) -> None:
    address = f"sketchy.experiments.architectures:{published.__name__}"
    command = [sys.executable, "-c", "from sketchy.cli import main; main()", "memory", "--model", address]
    seconds: list[float] = []
    resident: list[int] = []
    while len(seconds) < 3 and min(seconds, default=5) >= 5:  # a busy machine slows a run, not all of them
        with (tmp_path / "out.json").open("w") as out:
            process = subprocess.Popen([*command, "--json"], stdout=out)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        seconds.append(used.ru_utime + used.ru_stime)
        resident.append(used.ru_maxrss * (1 if sys.platform == "darwin" else 1024))
    assert min(seconds) < 5 and max(resident) < 1 << 30, (seconds, resident)

    result = json.loads((tmp_path / "out.json").read_text())
    adamw = soap = 0
    for shape in published():
        m, n = (*shape, 1)[:2]
        adamw += 4 * (2 * m * n) + 4
        soap += 4 * (2 * m * n) + 4
        if len(shape) == 2:
            soap += 4 * sum(2 * side**2 for side in shape if side <= SOAP_LONGEST)
    assert of(result, "AdamW")["bytes"] == adamw
    assert of(result, "SOAP")["bytes"] == soap
    assert result["tensors"] == len(published())


# ---- what is printed


def test_the_tables_name_every_optimizer_and_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    memory(shape=SHAPES, ranks=(4, 32), budget="12MiB")
    lines = capsys.readouterr().out.splitlines()
    row = next(line for line in lines if "AdamW " in line)
    assert row.split() == ["AdamW", "1.07", "MiB", "7.67", "MiB", "2.35", "KiB", "8.74", "MiB", "2"]
    for label in (
        "SGD",
        "Adafactor, momentum",
        "AdamW, 8 bits",
        "Muon",
        "GaLore, rank 128",
        "Shampoo",
        "SOAP",
        "GGT",
        "SketchyShampoo, rank 32",
        "SketchySOAP, rank 4",
        "SketchySOAP, rank 32, int4",
    ):
        assert any(line.strip().startswith(label) for line in lines), label
    assert any(line.split() == ["300x200", "1", "300", "(exact)", "300", "(exact)"] for line in lines)
    assert all(len(line) <= 80 for line in lines)


def test_json_is_alone_and_its_parts_sum_up(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    result = found(capsys, shape=SHAPES, ranks=(4, 32, 4), plot=tmp_path / "new" / "memory.png")
    assert (tmp_path / "new" / "memory.png").read_bytes().startswith(b"\x89PNG")
    assert result["weights"] == 300 * 200 + 2 * 200 * 200 + 50257 * 20 + 300
    assert sum(group["tensors"] for group in result["groups"].values()) == result["tensors"] == 5
    for row in result["optimizers"]:
        assert row["bytes"] == sum(row["groups"].values())
        assert row["bytes"] == row["momentum"] + row["second_moment"] + row["other"]
        assert row["floats_per_weight"] == row["bytes"] / 4 / result["weights"]
    assert [r["rank"] for r in result["optimizers"] if r["optimizer"] == "SketchySOAP"] == [4, 32, 32]


def test_dtypes_of_weights_and_of_momentum_count(capsys: pytest.CaptureFixture[str]) -> None:
    plain, half, light, small = (
        found(capsys, shape=("300x200",), ranks=(8,), **options)
        for options in (
            {},
            {"dtype": "bfloat16"},
            {"momentum_dtype": "bfloat16"},
            {"momentum_dtype": "int4", "adam_dtype": "int8"},
        )
    )
    assert of(half, "AdamW")["bytes"] - 4 == (of(plain, "AdamW")["bytes"] - 4) / 2
    assert of(half, "SketchyShampoo", 8)["bytes"] == of(plain, "SketchyShampoo", 8)["bytes"]
    assert of(light, "SketchyShampoo", 8)["momentum"] == of(plain, "SketchyShampoo", 8)["momentum"] / 2
    # packed codes, two scales a row, and 8 coordinates a column in bfloat16
    assert of(small, "SketchyShampoo", 8)["momentum"] == 300 * 100 + 4 * 300 * 2 + 2 * 8 * 200


def test_a_planned_budget_is_what_the_optimizer_then_holds(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{SMALL}.py").write_text(
        "from torch import nn\n"
        "def net():\n"
        "    return nn.Sequential(nn.Embedding(50, 24), nn.Linear(24, 90), nn.Linear(90, 88))\n"
    )
    monkeypatch.chdir(tmp_path)
    memory(model=f"{SMALL}:net", budget="75kB", json=True)
    text = capsys.readouterr().out
    budget = json.loads(text)["budget"]
    assert budget["bytes"] == 75_000
    model: nn.Module = sys.modules[SMALL].net()
    known: dict[str, Any] = {"json": json, "sketchy": sketchy, "model": model, "text": text}
    exec(PAGE.split("```python\n")[1].split("```")[0], known)  # as the page tells to use a plan
    assert known["optimizer"].report().bytes == budget["optimizers"][0]["plan_bytes"] <= 75_000
    assert len({group["rank"] for group in known["groups"] if group["path"] == "sketch"}) == 2
    for optimizer, planned in zip((SketchyShampoo, SketchySOAP), budget["optimizers"], strict=True):
        alike = optimizer(sketchy.param_groups(model), rank=planned["rank"])
        assert alike.report().bytes == planned["bytes"] <= 75_000


def test_a_plan_where_nothing_is_sketched_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    memory(shape=("300",), budget="1MiB")
    assert "no weight is sketched" in capsys.readouterr().out


# ---- mistakes


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "no weights given; use --shape 4096x1024, --model or --file"),
        ({"shape": ("4096*4",)}, "shape='4096*4': must be whole numbers joined by x, such as 4096x1024"),
        ({"shape": ("0x4",)}, "no weights given; use --shape 4096x1024, --model or --file"),
        ({"shape": ("9x9",), "ranks": ()}, "ranks is empty: give at least one rank, such as --ranks 16 64"),
        ({"shape": ("9x9",), "ranks": (1,)}, "rank=1: must be an int, at least 2, or None"),
        (
            {"shape": ("9x9",), "budget": "8"},
            "budget='8': must be a number with a unit, such as 8GiB or 500MB",
        ),
        (
            {"shape": ("1024x1024",), "budget": "4MiB"},
            "budget='4MiB': SketchyShampoo needs at least 4.02 MiB for these weights, at rank 2;"
            " 4.00 MiB of it is momentum, which --momentum-dtype int8 divides by 4",
        ),
        ({"shape": ("9x9",), "plot": Path("memory.pdf")}, "plot='memory.pdf': must end in .png"),
        (
            {"shape": ("9",), "plot": Path("memory.png")},
            "plot='memory.png': no weight is a matrix (vectors and embeddings are not drawn)",
        ),
        ({"model": "no_such.thing:f"}, "model='no_such.thing:f': there is no module no_such"),
        ({"file": (Path("none.pt"),)}, "[Errno 2] No such file or directory: 'none.pt'"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_status_2(
    capsys: pytest.CaptureFixture[str], options: dict[str, Any], said: str
) -> None:
    assert mistake(capsys, **options) == said


def test_a_weight_given_twice_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import torch

    torch.save({"a": torch.ones(2, 2)}, tmp_path / "x.pt")
    file = tmp_path / "x.pt"
    assert mistake(capsys, file=(file, file)) == ("weight 'a' is in two inputs; give each weight once")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 8 << 30),
        ("500MB", 500_000_000),
        ("1.5 tib", 3 << 39),
        ("12b", 12),
        ("3KB", 3000),
        ("2kib", 2048),
    ],
)
def test_sizes_with_units_are_read(text: str, size: int) -> None:
    assert parse_bytes("budget", text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "8G", "1e3MB", "nan B"])
def test_sizes_that_are_none_are_told(text: str) -> None:
    with pytest.raises(ValueError, match="must be a number with a unit"):
        parse_bytes("budget", text)


def test_the_page_shows_what_the_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = PAGE.split("```text\n$ ")[1].split("```")[0]
    command, *lines = shown.splitlines()
    assert command == "sketchy memory --model sketchy.experiments.architectures:gpt2_xl --budget 8GiB"
    monkeypatch.setenv("COLUMNS", "80")
    memory(model="sketchy.experiments.architectures:gpt2_xl", budget="8GiB")
    printed = capsys.readouterr().out.splitlines()
    assert [line.rstrip() for line in printed] == [line.rstrip() for line in lines]


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from sketchy.cli import main

    monkeypatch.setattr(sys, "argv", ["sketchy", "memory", "--help"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 0
    assert "Example: sketchy memory --model" in capsys.readouterr().out


# ---- many ranks


def test_with_shards_it_counts_what_a_rank_keeps_and_sends(capsys: pytest.CaptureFixture[str]) -> None:
    result = found(capsys, shape=SHAPES, ranks=(8,), shards=8, replicas=2)
    ranks = result["ranks"]
    assert (ranks["shards"], ranks["replicas"]) == (8, 2)
    weights = list(of_shapes(SHAPES).values())
    for optimizer in (SketchyShampoo, SketchySOAP):
        (row,) = (row for row in ranks["optimizers"] if row["optimizer"] == optimizer.__name__)
        planned = on_ranks(optimizer, weights, 8, 2, rank=8)
        assert (row["most_bytes"], row["least_bytes"]) == (planned.most, planned.least)
        assert (row["sent_bytes"], row["collectives"]) == (planned.sent, planned.collectives)
        assert row["least_bytes"] < row["most_bytes"] < of(result, row["optimizer"], 8)["bytes"] / 7
        assert row["sent_bytes"] > 0 == row["gathered_bytes"]
    dense = ranks["optimizers"][0]
    assert dense["optimizer"] == "Shampoo" and dense["gathered_bytes"] == 4 * (300 * 200 + 2 * 200 * 200)
    assert "ranks" not in found(capsys, shape=SHAPES, ranks=(8,))


def test_the_table_of_ranks_fits_a_terminal_and_says_why_gradients_are_gathered(
    capsys: pytest.CaptureFixture[str],
) -> None:
    memory(shape=("2000x1500",), ranks=(64, 256), shards=8)
    said = capsys.readouterr().out
    table = said[said.index("On each of 8 shards") :]
    assert "…" not in table and "SketchySOAP, rank 256" in table
    assert "blocks (block_size) cross the parts" in " ".join(table.split())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shards": 0}, "shards=0: must be at least 1: the number of ranks that divide the weights"),
        ({"shards": 2, "replicas": 0}, "replicas=0: must be at least 1: the number of copies of the weights"),
        ({"replicas": 2}, "replicas=2: needs --shards of at least 2"),
    ],
    ids=str,
)
def test_wrong_numbers_of_ranks_are_refused(
    options: dict[str, int], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mistake(capsys, shape=SHAPES, **options).startswith(said)


# ---- plans from measured spectra


@pytest.fixture
def trained(tmp_path: Path) -> tuple[nn.Sequential, Path, Path]:
    """A network, its file, and the spectra of a short run. All directions of the first weight are alike."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(96, 64), nn.Linear(64, 96))
    optimizer = SketchySOAP(net.named_parameters(), lr=1e-3, rank=8)
    file, spectra = tmp_path / "net.pt", tmp_path / "spectra.jsonl"
    with SpectrumMonitor(optimizer, every=4, path=spectra):
        for _ in range(8):
            net[0].weight.grad = torch.randn(64, 96)
            net[1].weight.grad = torch.randn(96, 64) / torch.arange(1, 65)
            optimizer.step()
    torch.save(net.state_dict(), file)
    return net, file, spectra


def test_a_plan_from_spectra_is_that_of_the_option_budget(
    trained: tuple[nn.Sequential, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    net, file, spectra = trained
    result = found(capsys, file=(file,), budget="140kB", from_=spectra)
    plan = next(p for p in result["plans"] if p["optimizer"] == "SketchySOAP")
    assert plan["bytes"] <= 140_000 and plan["measured"] == 2
    ranks = {name: g.get("rank") for g in plan["plan"] for name in g["names"]}
    assert sum(ranks["0.weight"]) < sum(ranks["1.weight"])
    named = dict(net.named_parameters())
    groups = [{"params": [(n, named[n]) for n in g.pop("names")], **g} for g in plan["plan"]]
    optimizer = SketchySOAP(groups, lr=1e-3)
    shown = {row.name: list(row.ranks) for row in optimizer.report() if row.path == "sketch"}
    assert shown == {name: rank for name, rank in ranks.items() if rank is not None}
    assert optimizer.report().bytes == plan["bytes"]


def test_the_plan_is_printed(
    trained: tuple[nn.Sequential, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    memory(file=(trained[1],), budget="140kB", from_=trained[2])
    printed = capsys.readouterr().out
    assert "Ranks that follow the spectra" in printed and "2 of 2 weights have measured spectra" in printed


def test_mistakes_with_spectra_are_told(
    trained: tuple[nn.Sequential, Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, file, spectra = trained
    assert "needs --budget" in mistake(capsys, file=(file,), from_=spectra)
    assert "not of 8x8: give the model" in mistake(capsys, shape=("8x8",), budget="1MB", from_=spectra)
    old = tmp_path / "old.jsonl"
    rows = [json.loads(line) for line in spectra.read_text().splitlines()]
    old.write_text("".join(json.dumps({k: v for k, v in row.items() if k != "lost"}) + "\n" for row in rows))
    assert "of an older version" in mistake(capsys, file=(file,), budget="1MB", from_=old)
    assert "No such file" in mistake(capsys, file=(file,), budget="1MB", from_=tmp_path / "none.jsonl")
