"""What the README says is true here: its numbers, versions, memory rule and links."""

import re
import tomllib
from itertools import product
from pathlib import Path

import pytest
import torch
from benchmarks.quality import overview
from benchmarks.quality.front import Front
from hatch_build import absolute

from benchmarks import pages
from sketchy import SketchySOAP
from sketchy.analysis import memory

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINNED = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
SCREEN = 45  # lines that a first look shows


def test_it_is_short_and_its_first_screen_has_what_a_reader_needs_first() -> None:
    assert len(README.splitlines()) < 90
    first = "\n".join(README.splitlines()[:SCREEN])
    needed = (
        "pip install .",
        "sketchy.SketchySOAP(",
        "make demo ",
        "make test ",
        "first.png",
        "| AdamW |",
        "GPU",
    )
    assert [text for text in needed if text not in first] == []


def test_its_table_is_as_the_results_have_it() -> None:
    assert pages.filled(README) == README, "python -m benchmarks.pages writes it"
    assert all(str(who.name) in README for who in overview.FIRST)


def test_ours_reach_adamws_loss_in_less_than_half_of_its_steps() -> None:
    assert "on our five small tasks in less than half as many" in README
    for task in pages.TASKS:
        front = Front.of(task, pages.RESULTS / f"quality-{task}.jsonl")
        (ours,) = (each for each in front.found if str(each.variant) == "sketchy_soap, rank 32")
        assert ours.steps_to_adamws_loss is not None and ours.steps_to_adamws_loss < front.steps / 2


def test_the_state_is_smaller_than_adamws_where_it_says_so() -> None:
    assert "shorter side, and this side is 64 or longer (rank 64: from width 192 on)" in README
    adamw = next(h for h in memory.holders() if h.name == "AdamW").held
    for m, n in product((64, 100, 192, 512, 4096), repeat=2):
        ours = memory.planned(SketchySOAP, rank=min(m, n) // 3)
        weight = memory.Weight((m, n), path="sketch")
        assert ours(weight).total < adamw(weight).total, (m, n)
    of_width_160 = memory.Weight((160, 160))
    assert memory.planned(SketchySOAP, rank=64)(of_width_160).total > adamw(of_width_160).total


def test_its_versions_are_those_that_are_tested() -> None:
    assert f"Python 3.11 and torch {PINNED['torch'].rpartition('.')[0]} run all tests" in README
    assert torch.__version__.startswith(PINNED["torch"])
    (oldest,) = (need.partition(">=")[2] for need in PROJECT["dependencies"])
    matrix = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    torches, pythons = re.findall(r'torch: "([\d.]+)"', matrix), re.findall(r'"(3\.\d+)"', matrix)
    assert f"torch {oldest} to {torches[-1].rpartition('.')[0]}" in README
    assert f"It needs torch {oldest} or newer" in (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
    assert torches[0] == f"{oldest}.0" and PROJECT["requires-python"] == f">={min(pythons)}"
    said = {c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", c)}
    assert said == set(pythons)


def test_on_a_package_index_its_links_are_absolute() -> None:
    text = absolute(README, PROJECT["urls"]["Repository"])
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 20 and all(link.startswith("https://") for link in links)
    assert all("/raw/main/docs/" in link for link in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text))


def test_nobody_uploads_a_package_whose_links_lead_nowhere() -> None:
    placeholder = "://example.org/" in PROJECT["urls"]["Repository"]
    assert placeholder == ("Private :: Do Not Upload" in PROJECT["classifiers"])


@pytest.mark.parametrize("entry", ["README.md", "CITATION.cff"])
def test_the_citation_is_complete(entry: str) -> None:
    text = (ROOT / entry).read_text(encoding="utf-8")
    for part in ("Feinberg", "Chen", "Sun", "Anil", "Hazan", "2023", "Frequent Directions", "2302.03764"):
        assert part in text


def test_the_citation_file_is_what_hosts_read() -> None:
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert found["cff-version"] == "1.2.0" and found["license"] == PROJECT["license"]
    paper = found["preferred-citation"]
    assert len(paper["authors"]) == 5 and paper["title"] in README and found["message"] and found["authors"]


@pytest.mark.parametrize("path", sorted(ROOT.glob(".github/**/*.yml")), ids=lambda path: path.name)
def test_what_the_host_reads_is_yaml(path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.parent.name == "ISSUE_TEMPLATE" and path.name != "config.yml":
        assert found["name"] and found["description"] and all("type" in part for part in found["body"])


def test_the_workflow_runs_what_must_hold_for_every_commit() -> None:
    assert "run: .ci/run" in (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    steps = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.startswith("make ")]
    assert steps == ["make lint", "make docs", "make test"]  # the last line of the output is pytest's
