"""`sketchy report`: all kinds of results are shown, other files are listed, the page needs no other file."""

import html
import json
import math
import re
import shutil
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

pytest.importorskip("tyro")
pytest.importorskip("plotly")

from report_runs import HOSTILE, jsonl, step_row

from sketchy import __version__
from sketchy.cli.report import report
from sketchy.experiments import looks
from sketchy.experiments.page import Page, Plot, Section, Table, lines
from sketchy.experiments.report import collect
from sketchy.experiments.sections import KINDS

ROOT = Path(__file__).parents[2]


def table(page: Page, title: str) -> dict[str, dict[str, str]]:
    """Cells of a section's first table, by row and column."""
    section = next(section for section in page.sections if section.title.startswith(title))
    found = next(block for block in section.blocks if isinstance(block, Table))
    return {row[0]: dict(zip(found.header[1:], row[1:], strict=True)) for row in found.rows}


def test_every_kind_is_recognised_in_what_the_commands_write(runs: Path) -> None:
    page = collect([runs])
    assert {section.title.partition(":")[0].partition(",")[0] for section in page.sections} == {
        "Demo",
        "Finals",
        "Memory",
        "Observation 2",
        "Online learning",
        "Runs",
        "Scaling of a step",
        "Search",
        "Sketches of digits",
        "Spectra",
        "Step time",
        "Training quality",
    }
    assert len(KINDS) == 12 and len(page.sections) == 13  # training quality twice
    assert {Path(file).name: why for file, why in page.not_understood.items()} == {
        "<b>data.csv": "not a .json or .jsonl file",
        "unknown.jsonl": "unknown kind of rows",
    }


def test_numbers_are_those_of_the_rows(runs: Path) -> None:
    page = collect([runs])
    rows = [json.loads(line) for line in (runs / "oco" / "results.jsonl").read_text().splitlines()]
    best = min(row["average_loss"] for row in rows if row["learner"] == "s-adagrad")
    assert table(page, "Online learning")["s-adagrad"]["average loss"] == f"{best:.4f}"
    demo = json.loads((runs / "demo" / "rows.jsonl").read_text().splitlines()[0])
    assert table(page, "Demo")["AdamW"]["loss"].startswith(f"{demo['loss']:.3f} ± ")
    assert table(page, "Memory")["SketchySOAP, rank 4"]["total"] == "8.79 KiB"
    assert table(page, "Scaling")["AdamW in m"]["exponent"] == f"{math.log(9 / 3, 4):.2f}"  # 3, 5, 9 ms
    steps = table(page, "Step time")
    assert steps["AdamW"]["CPU ms a step"] == "3" and steps["AdamW"]["times AdamW"] == "1.00"
    assert steps["SketchySOAP"]["times AdamW"] == f"{10 / 3:.2f}"  # round by round: 9/2, 10/3, 11/4
    assert steps["SketchySOAP floor"]["times AdamW"] == ""  # no optimizer
    assert "Muon" not in steps
    caption = next(section.blocks[0].caption for section in page.sections if section.title == "Step time")
    assert caption.endswith("Without a result: Muon (RuntimeError: no).")


def test_an_optimizer_that_failed_is_in_the_caption_with_the_reason(runs: Path) -> None:
    page = collect([runs / "results"])
    assert "SOAP, dense (ours)" not in table(page, "Training quality")
    caption = next(s.blocks[0].caption for s in page.sections if s.title.startswith("Training quality"))
    assert caption.endswith("Without a result: SOAP, dense (ours) (TimeoutError: too slow).")


@pytest.mark.parametrize("task", ["charlm", "autoencoder", "cifar10", "tox21", "warpeace"])
def test_the_report_and_the_docs_show_the_same_table_of_a_task(task: str) -> None:
    """Every cell: they once chose the best rate by two rules, and eleven rows differed."""
    (section,) = collect([ROOT / "benchmarks" / "results" / f"quality-{task}.jsonl"]).sections
    shown = section.blocks[0]
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    lines = text.partition(f"<!-- table: front {task} -->")[2].partition("<!-- end -->")[0].splitlines()
    header, _, *rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    assert header == shown.header
    assert sorted(rows) == sorted([cell.strip() for cell in row] for row in shown.rows)


def test_a_cut_off_last_line_is_left_out_and_a_bad_line_is_told(tmp_path: Path) -> None:
    whole = json.dumps({"problem": "block", **step_row("adamw", 2.0)})
    (tmp_path / "cut.jsonl").write_text(f'{whole}\n{{"problem": "bl')
    (tmp_path / "bad.jsonl").write_text(f'{{"problem": "bl\n{whole}\n')
    (tmp_path / "amiss.jsonl").write_text(json.dumps({**json.loads(whole), "samples": 3}) + "\n")
    page = collect([tmp_path])
    assert [Path(section.source).name for section in page.sections] == ["cut.jsonl"]
    assert {Path(file).name for file in page.not_understood} == {"bad.jsonl", "amiss.jsonl"}


JUNK = {
    "deep.jsonl": b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"\n",
    "deep.json": b"[" * 100_000 + b"]" * 100_000,
    "long.jsonl": b'{"learner": ' + b"9" * 401 + b"}\n",
    "longer.json": b'{"weights": ' + b"9" * 5000 + b"}",
    "binary.jsonl": bytes(range(256)) * 9,
    "list.json": b"[]",
    "number.jsonl": b"3\n",
    "empty.json": b"",
    "utf16.json": '{"a": 1}'.encode("utf-16"),
}


def test_a_bad_file_is_listed_and_the_others_are_shown(tmp_path: Path) -> None:
    jsonl(tmp_path / "good.jsonl", [{"problem": "block", **step_row("adamw", 2.0)}])
    for name, content in JUNK.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "secret.jsonl").write_text("{}")
    (tmp_path / "secret.jsonl").chmod(0)
    page = collect([tmp_path])
    assert [Path(section.source).name for section in page.sections] == ["good.jsonl"]
    assert {Path(file).name for file in page.not_understood} >= set(JUNK)
    assert all(why and "\n" not in why for why in page.not_understood.values())
    assert "a number of 401 digits" in page.not_understood[str(tmp_path / "long.jsonl")]


VALUES = (None, -1, 10**299, float("nan"), float("inf"), 1e-320, "x", "", [], [[1]], {}, {"a": [None]}, True)


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_rows_with_any_value_in_any_place_never_take_the_page_down(
    kind: int, runs: Path, tmp_path: Path
) -> None:
    """Each key of each kind of rows, with each of the values, in the first row of a file of its own."""
    for path in sorted([*runs.rglob("*.jsonl"), *runs.rglob("memory.json")]):
        rows = [json.loads(line) for line in path.read_text().splitlines()[-20:]]
        rows = [row for row in rows if "budget" not in row]
        if KINDS[kind].recognises(rows) and path.parent.name != "odd":
            break
    else:
        pytest.fail(f"no file of the kind {KINDS[kind].keys}")
    jsonl(tmp_path / "good.jsonl", rows)
    for i, key in enumerate(rows[0]):
        for j, value in enumerate(VALUES):
            jsonl(tmp_path / f"bad-{i}-{j}.jsonl", [{**rows[0], key: value}, *rows[1:]])
    page = collect([tmp_path])
    assert str(tmp_path / "good.jsonl") in {section.source for section in page.sections}
    assert len(page.sections) + len(page.not_understood) == 1 + len(rows[0]) * len(VALUES)
    page.html("")


@pytest.mark.parametrize("file", ["options.json", "checkpoints/ogd.pt"])
@pytest.mark.parametrize("junk", [b"", b"[]", b"junk", b"[" * 100_000, b"PK\x03\x04"])
def test_online_results_are_shown_without_a_bad_file_beside_them(
    file: str, junk: bytes, runs: Path, tmp_path: Path
) -> None:
    shutil.copytree(runs / "oco", tmp_path / "oco")
    whole = len(collect([tmp_path]).sections[0].blocks)
    (tmp_path / "oco" / file).write_bytes(junk)
    page = collect([tmp_path])
    (section,) = page.sections
    cells = {row[0] for row in section.blocks[0].rows}
    assert cells == {"ogd", "s-adagrad"} and len(section.blocks) == whole - (file == "options.json")
    ((name, why),) = page.not_understood.items()
    assert name == str(tmp_path / "oco" / file) and "damaged" in why and "remove it" in why


def test_a_report_reads_no_file_outside_of_its_runs(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(runs / "oco", tmp_path / "oco")
    shutil.copy(tmp_path / "oco" / "checkpoints" / "ogd.pt", tmp_path / "outside.pt")
    path, opened = tmp_path / "oco" / "options.json", []
    plan = json.loads(path.read_text())
    path.write_text(json.dumps({**plan, "learners": ["../../outside", str(tmp_path / "outside")]}))
    load = torch.load
    monkeypatch.setattr(torch, "load", lambda file, **options: (opened.append(file), load(file, **options)))
    page = collect([tmp_path / "oco"])
    assert not opened and "learners='../../outside" in page.not_understood[str(path)]


class Tags(HTMLParser):
    """All tags with their attributes, and the addresses that a browser would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_the_page_escapes_all_text_and_fetches_nothing(runs: Path) -> None:
    page = collect([runs])
    content = page.html(f"made by {HOSTILE}", version=HOSTILE, date=HOSTILE)
    found = Tags(content).tags
    assert not [tag for tag, _ in found if tag in ("img", "b", "iframe")]
    assert len([tag for tag, _ in found if tag == "script"]) == content.count("<figure>") + 2
    addresses = [value for _, attrs in found for name in ("src", "href") if (value := attrs.get(name))]
    assert addresses and all(re.match("#section-|data:,", address) for address in addresses)
    assert page.html("again") == page.html("again")


def test_no_text_in_a_plot_can_end_its_script() -> None:
    plot = Plot(HOSTILE, [{"x": [HOSTILE], "name": "</script><b>"}], {"title": "<!--"}, {"title": "<script"})
    content = Page([Section("", "", [plot])]).body()
    ((_, figure, _),) = re.findall(r'(<script type="application/json">)(.*?)(</script>)', content)
    assert "<" not in figure
    assert json.loads(figure)["data"] == plot.traces  # the browser reads what was given
    assert [tag for tag, _ in Tags(content).tags].count("script") == 1


def test_a_page_says_what_made_it(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "a page.html"
    report((runs / "demo",), out=out)
    today = time.strftime("%Y-%m-%d")
    command = f"sketchy report {runs / 'demo'} --out '{out}'"
    assert f"sketchy {__version__}, {today}: <code>{html.escape(command)}</code>" in out.read_text()


def headings(content: str) -> list[tuple[str, str]]:
    return re.findall(r"<(h[1-6])>(.*?)</h[1-6]>", content)


def test_a_section_has_one_heading_and_no_two_are_equal(runs: Path, tmp_path: Path) -> None:
    for folder in ("first", "second"):
        shutil.copytree(runs / "oco", tmp_path / folder / "oco")
    content = collect([runs, tmp_path]).html("")
    sections = content.split("<section")[1:]
    assert all(len(re.findall("<h[23]>", section.partition("</section>")[0])) == 1 for section in sections)
    found = headings(content.partition("<nav>")[2])
    assert len(set(found)) == len(found)
    kind = found[found.index(("h2", "Online learning")) :][1:4]
    assert [level for level, _ in kind] == ["h3"] * 3  # one heading for all, and one for each of the three
    assert kind[1][1] == f"digits · results · {tmp_path / 'first' / 'oco' / 'results.jsonl'}"
    assert ("h2", "Demo: a small network on digits") in found  # alone, it needs none above it
    links = re.findall(r'<a href="#(section-\d+)">(.*?)</a>', content)
    assert len(links) == len(sections) - 1  # the last lists files
    for name, title in links:
        assert re.search(rf'<section id="{name}"><h[23]>{re.escape(title)}</h', content)


def styles(content: str) -> dict[str, set[tuple[str, ...]]]:
    """Colour and marker of each owner, in all plots of a page; names of bars have a line break."""
    found: dict[str, set[tuple[str, ...]]] = {}
    for text in re.findall(r'<script type="application/json">(.*?)</script>', content):
        for trace in json.loads(text)["data"]:
            if trace["type"] == "bar":
                for name, colour in zip(trace["y"], trace["marker"]["color"], strict=True):
                    found.setdefault(looks.owner(name.replace("<br>", ", ")), set()).add((colour,))
            elif "fill" not in trace:
                found.setdefault(looks.owner(trace["name"]), set()).add((trace["line"]["color"],))
    return found


def test_a_learner_or_optimizer_has_one_colour_everywhere(runs: Path) -> None:
    for page in (collect([runs]), collect([runs, ROOT / "benchmarks" / "results"]), collect([runs / "oco"])):
        found = styles(page.html(""))
        assert all(len(colours) == 1 for colours in found.values()), found
        assert found["s-adagrad"] == {(looks.COLOURS[0],)}  # also on other pages
    results = styles(collect([ROOT / "benchmarks" / "results"]).html(""))
    assert results["SketchySOAP"] != results["AdamW"] and len(results) > 30


def test_no_two_lines_of_a_plot_look_alike() -> None:
    page = collect([ROOT / "benchmarks" / "results"])
    numbers = looks.numbers(plot.owners for section in page.sections for plot in section.plots)
    plots = [plot for section in page.sections for plot in section.plots if not plot.bars]
    assert max(len(plot.traces) for plot in plots) > 20
    for plot in plots:
        drawn = looks.dressed(plot.traces, plot.owners, numbers)
        seen = [(*trace["line"].values(), trace["marker"]["symbol"]) for trace in drawn]
        assert len(set(seen)) == len(seen), plot.title


def test_an_axis_with_few_values_has_its_ticks_there() -> None:
    plot = lines({"a": ([4, 64], [1, 2]), "b": ([16], [1])}, title="", x="rank", y="", log_x=True)
    assert plot.x["tickvals"] == [4, 16, 64] and plot.x["ticktext"] == ["4", "16", "64"]
    many = lines({"a": (range(1, 9), [1] * 8)}, title="", x="", y="", log_x=True)
    assert "tickvals" not in many.x


def test_infinities_become_gaps(tmp_path: Path) -> None:
    row = {"learner": "ogd", "delta": 0.0, "sketch_size": 4, "rows": 9, "error_rate": 0.5, "seconds": 1.0}
    losses = {1e-3: 0.5, 1.0: float("inf")}
    jsonl(tmp_path / "results.jsonl", [{**row, "eta": eta, "average_loss": x} for eta, x in losses.items()])
    content = collect([tmp_path]).html("")
    figure = re.findall(r'<script type="application/json">(.*?)</script>', content)[-1]
    assert json.loads(figure)["data"][0]["y"] == [0.5, None]


@pytest.mark.parametrize(
    ("inside", "says"),
    [
        ({}, "holds no results of a run"),
        ({"curves.png": "x", "table.md": "x", ".hidden.jsonl": "{}"}, "holds no results of a run"),
        ({"a.csv": "x"}, "there is nothing to show; unsupported files: "),
        ({"a.json": "{"}, "there is nothing to show; unsupported files: "),
    ],
)
def test_a_directory_with_nothing_to_show_is_one_sentence_and_2(
    inside: dict[str, str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name, text in inside.items():
        (run / name).write_text(text)
    with pytest.raises(SystemExit) as stop:
        report((run,), out=tmp_path / "report.html")
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said.count("\n") == 1 and says in said
    assert not (tmp_path / "report.html").exists()


def test_json_says_what_the_page_holds(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report((runs / "demo", runs / "odd"), out=tmp_path / "new" / "page.html", json=True)
    said = json.loads(capsys.readouterr().out)
    assert Path(said["page"]).stat().st_size > 1e6  # plotly.js is in it
    assert said["sections"][0]["title"] == "Demo: a small network on digits"
    assert len(said["not_understood"]) == 2
