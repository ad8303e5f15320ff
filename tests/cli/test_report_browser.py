"""The report in a real browser: no error, plots drawn, phone width, light and dark."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

pytest.importorskip("plotly")

from sketchy.experiments.report import collect

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, to look at the page as people do")

# Listens from the start of the page, and tells the frame around it what came of it.
LISTEN = """<script>
const heard = [];
const all = (what) => [...document.querySelectorAll(what)];
addEventListener("error", (event) => heard.push(String(event.message)), true);
addEventListener("unhandledrejection", (event) => heard.push(String(event.reason)));
for (const kind of ["error", "warn"]) {
  const before = console[kind];
  console[kind] = (...words) => { heard.push(words.join(" ")); before(...words); };
}
// Whether two of these labels lie over each other.
const touching = (labels) => [...labels].map((label) => label.getBoundingClientRect()).some((a, i, every) =>
  every.slice(i + 1).some((b) => Math.max(a.left, b.left) < Math.min(a.right, b.right)
    && Math.max(a.top, b.top) < Math.min(a.bottom, b.bottom)));
// What the first button of a legend does when it is pressed, and pressed again.
function toggled() {
  const button = document.querySelector(".legend button");
  const traces = () => button.closest("figure").querySelectorAll(".scatterlayer .trace").length;
  const seen = [traces()];
  for (const _ of [1, 2]) {
    button.click();
    seen.push(traces());
  }
  return seen;
}
addEventListener("load", () => setTimeout(() => parent.postMessage(JSON.stringify({
  heard,
  width: innerWidth,
  content: document.documentElement.scrollWidth,
  places: all(".plot").length,
  drawn: all(".plot").filter((plot) => plot.querySelector(".main-svg .trace, .main-svg .bars")).length,
  scripts: document.scripts.length,
  ground: getComputedStyle(document.body).backgroundColor,
  text: getComputedStyle(document.body).color,
  ticks: getComputedStyle(document.querySelector(".xtick text")).fill,
  cut: all(".plot").filter((plot) => plot.scrollWidth > plot.clientWidth).length,
  names: all(".legend button").map((name) => name.textContent),
  legends: all(".legend").filter((legend) => legend.scrollWidth > legend.clientWidth).length,
  hidden: all(".legend button").filter((button) => !button.getClientRects().length).length,
  fits: all(".legend button").every((button) => button.getBoundingClientRect().right <= innerWidth),
  labels: all(".plot").flatMap((plot) => [...plot.querySelectorAll(".xtick text, .ytick text")]
    .map((label) => label.textContent)),
  overlaps: all(".plot").filter((plot) => touching(plot.querySelectorAll(".xtick text"))
    || touching(plot.querySelectorAll(".ytick text"))).length,
  toggled: toggled(),
}), "*"), 1000));
</script>"""
FRAME = """<body style="margin:0">
<iframe src="page.html" style="width:{width}px;height:900px;border:0"></iframe>
<script>
addEventListener("message", (event) => {{ document.body.dataset.seen = encodeURIComponent(event.data); }});
</script>
"""


def look(page: str, directory: Path, width: int, *, dark: bool = False) -> dict[str, Any]:
    """The page in a frame of this width, since a window can't be as narrow as a phone."""
    assert CHROMIUM is not None
    (directory / "page.html").write_text(page.replace("<head>", f"<head>{LISTEN}", 1), encoding="utf-8")
    (directory / "frame.html").write_text(FRAME.format(width=width))
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--host-resolver-rules=MAP * ~NOTFOUND",
    ]
    command += [f"--user-data-dir={directory / 'profile'}", f"--window-size={max(width, 500)},900", scheme]
    command += ["--enable-logging=stderr", "--v=0", "--virtual-time-budget=20000", "--dump-dom"]
    address = (directory / "frame.html").as_uri()
    ended = subprocess.run([*command, address], capture_output=True, text=True, timeout=300)
    seen = re.search(r'data-seen="([^"]*)"', ended.stdout)
    assert seen, ended.stderr
    console = [line for line in ended.stderr.splitlines() if "CONSOLE" in line]
    return {**json.loads(unquote(seen[1])), "console": console}


def brightness(colour: str) -> float:
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


@pytest.fixture(scope="module")
def page(runs: Path) -> str:
    return collect([runs]).html("test")


@pytest.mark.parametrize(("width", "dark"), [(390, False), (390, True), (1366, False), (1366, True)])
def test_the_page_is_drawn_without_an_error_and_fits_its_width(
    page: str, tmp_path: Path, width: int, dark: bool
) -> None:
    seen = look(page, tmp_path, width, dark=dark)
    assert seen["heard"] == [] and seen["console"] == []
    assert seen["drawn"] == seen["places"] > 10
    assert seen["width"] == width and seen["content"] <= width and seen["cut"] == 0
    ground, *ink = (brightness(seen[part]) for part in ("ground", "text", "ticks"))
    assert all(abs(ground - colour) > 150 for colour in ink)
    assert (ground < 60) == dark
    assert seen["legends"] == seen["hidden"] == 0 and seen["fits"]
    assert seen["overlaps"] == 0
    assert not [label for label in seen["labels"] if re.search(r"\d[µkM]$", label)]  # as in 1µ and 10k
    first, without, again = seen["toggled"]
    assert first == again == without + 1
    hostile = [name for name in seen["names"] if "onerror" in name]
    assert hostile and all(name.startswith("<img src=x") for name in hostile)  # shown as text
    assert seen["scripts"] == seen["places"] + 3  # no name became one


def test_an_error_and_a_wide_page_would_be_seen(page: str, tmp_path: Path) -> None:
    wide = '<div style="width: 700px">wide</div>'
    bad = '<script>console.error("told"); throw new Error("thrown")</script>'
    seen = look(page.replace("</main>", f"{wide}{bad}</main>"), tmp_path, 390)
    assert seen["content"] >= 700
    assert "told" in seen["heard"] and any("thrown" in message for message in seen["heard"])
    assert len(seen["console"]) == 2
