"""The mutants of a file: one operator, comparison, constant or min/max is changed at a time."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

SWAPS: dict[type, str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.Pow: "*", ast.Lt: "<=", ast.LtE: "<",
    ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.And: "or", ast.Or: "and",
}  # fmt: skip
SIGNS: dict[type, str] = {ast.USub: "-", ast.Not: "not", ast.Invert: "~"}  # they are left out
NAMES = {
    "maximum": "minimum", "minimum": "maximum", "amax": "amin", "amin": "amax", "max": "min", "min": "max",
    "all": "any", "any": "all",
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A change of one piece of a file."""

    file: str
    change: str  # the line, with ⟦old → new⟧ in the place of the piece: it names the mutant in its file
    line: int
    start: int  # of the piece, in bytes of the file
    end: int
    new: str
    first: int  # lines of the statement; 0 and 0: it runs when the file is imported
    last: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.change}"

    @property
    def unchanged(self) -> str:
        """The line without the change."""
        return re.sub("⟦(.*) → .*⟧", r"\1", self.change)

    def source(self, tree: Path) -> bytes:
        """The file with this change."""
        before = (tree / self.file).read_bytes()
        return before[: self.start] + self.new.encode() + before[self.end :]


def mutants_of(tree: Path, file: str) -> list[Mutant]:
    return _Changes(file, (tree / file).read_bytes()).found


class _Changes(ast.NodeVisitor):
    """All mutants of a file. Types, docstrings, messages and checks of our own mistakes are left alone."""

    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source = file, source
        self.lines = source.splitlines(keepends=True)
        self.found: list[Mutant] = []
        self.range, self.in_function = (0, 0), False
        self.visit(ast.parse(source))

    def visit(self, node: ast.AST) -> None:
        before = self.range
        if isinstance(node, ast.stmt) and self.in_function:
            body = getattr(node, "body", None)  # of a statement with a body, only the head
            last = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno
            self.range = node.lineno, last or node.lineno
        super().visit(node)
        self.range = before

    def _at(self, line: int | None, column: int | None) -> int:
        assert line is not None and column is not None
        return sum(map(len, self.lines[: line - 1])) + column

    def _change(self, start: int, end: int, new: str) -> None:
        line = self.source[:start].count(b"\n") + 1
        head, tail = self._at(line, 0), self._at(line + 1, 0)
        before, piece, after = (
            part.decode() for part in (self.source[head:start], self.source[start:end], self.source[end:tail])
        )
        change = f"{before}⟦{piece} → {new}⟧{after}".strip()
        self.found.append(Mutant(self.file, change, line, start, end, new, *self.range))

    def _between(self, left: ast.expr, right: ast.expr, operator: ast.AST) -> None:
        """Swap the operator between two operands."""
        start = self._at(left.end_lineno, left.end_col_offset)
        gap = self.source[start : self._at(right.lineno, right.col_offset)].decode()
        sign = gap.strip(" ()\n")
        if type(operator) in SWAPS and sign:
            at = start + len(gap[: gap.index(sign)].encode())
            self._change(at, at + len(sign.encode()), SWAPS[type(operator)])

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self._between(node.left, node.right, node.op)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        for left, operator, right in zip(sides, node.ops, node.comparators, strict=False):
            self._between(left, right, operator)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between(left, right, node.op)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if type(node.op) in SIGNS:
            start = self._at(node.lineno, node.col_offset)
            self._change(start, start + len(SIGNS[type(node.op)]), "")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            new = str(not node.value)
        elif isinstance(node.value, int):
            new = str(node.value + 1)
        elif isinstance(node.value, float):
            new = repr(4 * node.value if node.value else 1.0)
        else:
            return
        self._change(
            self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset), new
        )

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr in NAMES:
            end = self._at(node.end_lineno, node.end_col_offset)
            self._change(end - len(node.attr), end, NAMES[node.attr])
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in NAMES:
            start = self._at(node.lineno, node.col_offset)
            self._change(start, start + len(node.id), NAMES[node.id])

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for child in node.body:
            self.visit(child)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.visit(node.args)  # defaults
        before, self.in_function = self.in_function, True
        for child in node.body:
            self.visit(child)
        self.in_function = before

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg != "strict":  # of zip
            self.visit(node.value)

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_arg(self, node: ast.arg) -> None:
        pass

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def visit_Raise(self, node: ast.Raise) -> None:
        pass
