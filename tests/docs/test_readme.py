"""The README is short, and its numbers are those of other pages, except for the demo's."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS, PERFORMANCE = (
    (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("results.md", "performance.md")
)
PEERS = {  # the first words of a line there → who that is in the benchmark
    "GaLore": "GaLore (galore_torch)",
    "**SketchyShampoo**": "SketchyShampoo, rank 64",
    "**SketchySOAP**": "SketchySOAP, rank 64",
    "PSGD Kron": "PSGD Kron (heavyball)",
    "Shampoo (pytorch": "Scalable Shampoo (pytorch_optimizer)",
    "SOAP (heavyball)": "SOAP (heavyball)",
    "SOAP (pytorch": "SOAP (pytorch_optimizer)",
}


def line(text: str, start: str) -> list[str]:
    """The cells of the one line of a table that starts so."""
    (found,) = (row for row in text.splitlines() if row.startswith(f"| {start}"))
    return [cell.strip(" *") for cell in found.strip("|").split("|")]


def measured(page: str, optimizer: str) -> dict[str, str]:
    """The line of an optimizer in the only table of a page that has one, by column."""
    return dict(zip(line(page, "optimizer |"), line(page, f"{optimizer} |"), strict=True))


def test_it_is_short() -> None:
    assert len(README.splitlines()) < 90


@pytest.mark.parametrize("peer", PEERS)
def test_a_peers_time_and_memory_are_those_of_the_performance_page(peer: str) -> None:
    _, milliseconds, megabytes, _ = line(README, peer)
    found = measured(PERFORMANCE, PEERS[peer])
    assert found["CPU ms a step"].startswith(f"{milliseconds} (") and found["state, MB"] == megabytes


def test_adamws_two_times_are_those_of_the_performance_page() -> None:
    _, times, megabytes, _ = line(README, "AdamW, foreach")
    foreach, fused = (measured(PERFORMANCE, name) for name in ("AdamW", "AdamW, fused"))
    assert times == "{} ({})".format(*(found["CPU ms a step"].split()[0] for found in (foreach, fused)))
    assert megabytes == foreach["state, MB"]


@pytest.mark.parametrize("who", ["AdamW", "Muon", "SketchySOAP, rank 32", "SOAP, dense (ours)"])
def test_losses_and_state_under_the_picture_are_those_of_the_results_page(who: str) -> None:
    page = RESULTS.partition("### A small GPT")[2].partition("### ")[0]
    found = measured(page, who)
    state = f"{float(found['state, kB'].replace(',', '')) / 1000:.1f} MB"
    assert re.search(rf"at\s+{re.escape(found['loss'])} with {re.escape(state)}", README)


@pytest.mark.slow
def test_the_demo_table_is_what_the_demo_finds(tmp_path: Path) -> None:
    """Other processors round differently, which changes a loss by a part of its spread over seeds."""
    pytest.importorskip("sklearn")
    from sketchy.cli.demo import demo

    demo(out=tmp_path)
    for row in map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines()):
        name = row["optimizer"]
        _, loss, accuracy, _, state = line(README, name + (", rank 16" if "Sketchy" in name else " |"))
        assert int(state.replace(",", "")) == row["bytes"], name
        assert float(loss.split()[0]) == pytest.approx(row["loss"], abs=0.015), name
        assert float(accuracy.split()[0]) == pytest.approx(100 * row["accuracy"], abs=1), name
