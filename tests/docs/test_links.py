"""Every link inside README.md and docs/*.md leads somewhere: the file is there, and so is the heading."""

import re
import unicodedata
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
NAV = re.findall(r"^\s+- .+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)


def prose(page: Path) -> str:
    """A page without its code."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", lambda code: code.group().replace("[", " ").replace("]", " "), text)


def anchors(page: Path) -> set[str]:
    """The headings as mkdocs names them."""
    found: set[str] = set()
    seen: Counter[str] = Counter()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", prose(page), flags=re.MULTILINE):
        plain = unicodedata.normalize("NFKD", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading))
        words = re.sub(r"[^\w\s-]", "", plain.encode("ascii", "ignore").decode()).strip().lower()
        slug = re.sub(r"[-\s]+", "-", words)
        found.add(f"{slug}_{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def links(page: Path) -> list[str]:
    return [
        target
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(page))
        if not re.match(r"[a-z]+:", target)  # https, mailto
    ]


LINKS = [(page, link) for page in PAGES for link in links(page)]


def test_links_are_found_at_all() -> None:
    assert len(LINKS) > 20 and {"index.md", "results.md"} <= set(NAV)


@pytest.mark.parametrize(("page", "link"), LINKS, ids=lambda part: getattr(part, "name", part))
def test_every_link_leads_to_a_file_and_a_heading(page: Path, link: str) -> None:
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    assert target.exists(), f"{page.name} links to {name}, which is not there"
    if page.parent.name == "docs":
        assert target.is_relative_to(ROOT / "docs"), f"{page.name}: {link} is outside of the site"
    if anchor:
        assert anchor in anchors(target), f"{target.name} has no heading #{anchor}; it has {anchors(target)}"


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_every_page_is_in_the_navigation(page: Path) -> None:
    assert page.name in NAV


def test_the_navigation_leads_to_pages() -> None:
    assert all((ROOT / "docs" / name).exists() for name in NAV)
