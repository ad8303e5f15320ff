"""Markdown tables for the docs."""

from collections.abc import Container, Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]], left: Container[str] = ("optimizer",)) -> str:
    """Columns in ``left`` are aligned left, the others right.

    >>> print(table(["optimizer", "loss"], [["adamw", "2.1"], ["a|b", ""]]))
    | optimizer | loss |
    | --- | ---: |
    | adamw | 2.1 |
    | a\\|b |  |
    """
    marks = ["---" if name in left else "---:" for name in header]
    lines = (" | ".join(cell.replace("|", "\\|") for cell in line) for line in (header, marks, *rows))
    return "\n".join(f"| {line} |" for line in lines)
