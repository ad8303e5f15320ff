"""Mutation testing: small changes to the math, each of which some test must notice.

`make mutants` (python tests/mutants.py) changes one operator, comparison, constant or min/max at a time in
a copy of the tree, and runs the fast tests of that file. It prints the mutants that survive, and a score.
Results are kept in runs/mutants.jsonl, so a stopped run resumes. A changed file is done again, and `--again`
repeats the survivors.
"""

import argparse
import ast
import hashlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECONDS = 400  # a mutant that takes longer counts as killed: the tests take at most a third of this

FD = ["tests/test_frequent_directions_state.py", "tests/test_frequent_directions.py"]
OPTIMIZERS = ["tests/optim/test_equalities.py", "tests/optim/test_bad_gradients.py"]
# the fast tests of a file: those that kill most come first
TESTS = {
    "src/sketchy/frequent_directions.py": FD,
    "src/sketchy/core/bounds.py": ["tests/core/test_bounds.py", "src/sketchy/core/bounds.py"],
    "src/sketchy/core/certificate.py": [
        "tests/core/test_linalg.py",
        "tests/optim/test_stored_certificates.py",
        *FD,
        "tests/core/test_matmul_precision.py",
    ],
    "src/sketchy/core/corrected.py": ["tests/core/test_corrected.py", *OPTIMIZERS],
    "src/sketchy/core/dense.py": ["tests/core/test_dense.py", *OPTIMIZERS],
    "src/sketchy/core/extremes.py": ["tests/core/test_panels.py", "tests/core/test_linalg.py", *FD],
    "src/sketchy/core/linalg.py": ["tests/core/test_linalg.py", *FD],
    "src/sketchy/core/moments.py": ["tests/core/test_moments.py", "tests/optim/test_grafts.py", *OPTIMIZERS],
    "src/sketchy/core/momentum.py": ["tests/core/test_momentum.py", *OPTIMIZERS],
    "src/sketchy/core/operator.py": ["tests/core/test_operator.py"],
    "src/sketchy/core/preconditioner.py": ["tests/core/test_preconditioner.py", *OPTIMIZERS],
    "src/sketchy/core/rank_one.py": ["tests/core/test_rank_one.py", "tests/oco/test_every_learner.py"],
    "src/sketchy/core/sketch.py": [*FD, "tests/core/test_sketch.py"],
}
QUICK = "not long and not thousand and not huge_gradient"  # tests of many steps take seconds each
# Mutants that change no result, by file, line and change, with the reason.
EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        "src/sketchy/core/moments.py",
        "return (row_energy(as_matrix(x)).sqrt() * a).square().sum(-1).sqrt()",
        "- → ",
    ): "a matrix (S, m): axis 1 is the last one",
    (
        "src/sketchy/core/rank_one.py",
        "_SAFE_SHARE = 0.1",
        "0.1 → 0.4",
    ): "vectors are orthogonalised a second time more often: more work, and the same result up to rounding",
    (
        "src/sketchy/core/linalg.py",
        "failed == 0 and squared_sine > _SAFE_SINE**2 and shortest > _UNEQUAL**2 * longest",
        "> → >=",
    ): "differs only where a computed number equals the limit exactly; there both methods are accurate",
    (
        "src/sketchy/core/linalg.py",
        "noise = scattered(*U.shape[-2:], like=U) / U.shape[-2] ** 0.5",
        "0.5 → 2.0",
    ): "noise is made orthonormal, so its length does not count",
}

SWAPS: dict[type, str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.Pow: "*", ast.Lt: "<=", ast.LtE: "<",
    ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.And: "or", ast.Or: "and",
}  # fmt: skip
NAMES = {
    "maximum": "minimum", "minimum": "maximum", "amax": "amin", "amin": "amax", "max": "min", "min": "max",
    "all": "any", "any": "all",
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A change of one piece of a file."""

    file: str
    line: int
    text: str  # of the line
    start: int  # of the piece, in bytes of the file
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.old} → {self.new}   {self.text}"


class _Changes(ast.NodeVisitor):
    """All mutants of a file. Messages, types, defaults of `raise` and docstrings are left alone."""

    def __init__(self, file: str) -> None:
        self.file, self.source = file, (ROOT / file).read_bytes()
        self.lines = self.source.splitlines(keepends=True)
        self.found: list[Mutant] = []
        self.visit(ast.parse(self.source))

    def _at(self, line: int, column: int) -> int:
        return sum(map(len, self.lines[: line - 1])) + column

    def _change(self, start: int, end: int, new: str) -> None:
        line = self.source[:start].count(b"\n") + 1
        text = self.lines[line - 1].decode().strip()
        self.found.append(Mutant(self.file, line, text, start, self.source[start:end].decode(), new))

    def _between(self, left: ast.expr, right: ast.expr, operator: ast.AST) -> None:
        """Swap the operator between two operands."""
        assert left.end_lineno and left.end_col_offset is not None
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
        for left, operator, right in zip(
            [node.left, *node.comparators], node.ops, node.comparators, strict=False
        ):
            self._between(left, right, operator)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between(left, right, node.op)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.USub | ast.Not | ast.Invert):
            start = self._at(node.lineno, node.col_offset)
            self._change(start, self._at(node.operand.lineno, node.operand.col_offset), "")
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
        start = self._at(node.lineno, node.col_offset)
        self._change(start, start + node.end_col_offset - node.col_offset, new)  # type: ignore[operator]

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr in NAMES:
            end = self._at(node.end_lineno, node.end_col_offset)  # type: ignore[arg-type]
            self._change(end - len(node.attr), end, NAMES[node.attr])
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in NAMES:
            start = self._at(node.lineno, node.col_offset)
            self._change(start, start + len(node.id), NAMES[node.id])

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        pass

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for child in (node.args, *node.body):
            self.visit(child)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def visit_Raise(self, node: ast.Raise) -> None:
        pass


def killed(mutant: Mutant, tree: Path) -> bool:
    """Whether the tests of the file fail in a copy of the tree with this change."""
    path = tree / mutant.file
    before = path.read_bytes()
    end = mutant.start + len(mutant.old.encode())
    path.write_bytes(before[: mutant.start] + mutant.new.encode() + before[end:])
    try:
        return not _passes(tree, TESTS[mutant.file])
    finally:
        path.write_bytes(before)


def _passes(tree: Path, tests: list[str]) -> bool:
    """Run the tests in a fork, which saves importing torch again."""
    child = os.fork()
    if child == 0:
        try:
            _test(tree, tests)
        finally:
            os._exit(2)
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def _test(tree: Path, tests: list[str]) -> None:
    """Run the tests in this process, and end it."""
    os.setsid()
    os.chdir(tree)
    for number in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    sys.path[:0] = [str(tree / "src"), str(tree / "tests"), str(tree)]
    sys.dont_write_bytecode = True
    os.environ["SKETCHY_EXAMPLES"] = "25"
    import pytest

    words = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--hypothesis-seed=0", "-k", QUICK]
    os._exit(int(pytest.main([*words, *tests])))


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", default=list(TESTS), help="of those that have tests in TESTS")
    parser.add_argument("--sample", type=int, help="so many mutants, drawn at random; all if not given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--minutes", type=float, default=15.0, help="stop after this time; the next run resumes"
    )
    parser.add_argument("--again", action="store_true", help="repeat the survivors of earlier runs")
    options = parser.parse_args(words)
    sys.path.insert(0, str(ROOT / "src"))
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import torch

    torch.set_num_threads(1)
    mutants = [mutant for file in options.files for mutant in _Changes(file).found]
    if options.sample is not None:
        mutants = random.Random(options.seed).sample(mutants, min(options.sample, len(mutants)))
    equivalent = [m for m in mutants if (m.file, m.text, f"{m.old} → {m.new}") in EQUIVALENT]
    results = dict(
        _results(ROOT / "runs" / "mutants.jsonl", mutants, equivalent, options.minutes, options.again)
    )
    survivors = [mutant for mutant, dead in results.items() if not dead]
    for mutant in survivors:
        print(f"survived: {mutant}")
    score = 100 * (1 - len(survivors) / max(1, len(results)))
    left = len(mutants) - len(equivalent) - len(results)
    print(f"{score:.1f} % of {len(results)} mutants killed; {len(equivalent)} equivalent, {left} not run")


def _results(
    path: Path, mutants: list[Mutant], equivalent: list[Mutant], minutes: float, again: bool
) -> Iterator[tuple[Mutant, bool]]:
    """Each mutant and whether it was killed, now or in an earlier run on the same file."""
    from json import dumps, loads  # sketchy itself must not be imported before a fork

    content = {
        file: hashlib.sha256((ROOT / file).read_bytes()).hexdigest()[:16]
        for file in {m.file for m in mutants}
    }
    path.parent.mkdir(exist_ok=True)
    text = path.read_text() if path.exists() else ""
    lines = [loads(line) for line in text.splitlines() if line.endswith("}")]  # a killed run may leave a part
    known = {dumps(line["mutant"]) + line["content"]: line["killed"] for line in lines}
    until, run, alive = time.monotonic() + 60 * minutes, set[str](), set[str]()
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch, path.open("a") as out:
        for name in ("src", "tests", "benchmarks", "docs", "examples", "pyproject.toml"):
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, Path(scratch) / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, scratch)
        for mutant in mutants:
            key = dumps(asdict(mutant)) + content[mutant.file]
            if mutant in equivalent:
                continue
            if key in known and (known[key] or not again):
                yield mutant, known[key]
            elif time.monotonic() < until:
                dead = killed(mutant, Path(scratch))
                row = {"mutant": asdict(mutant), "content": content[mutant.file], "killed": dead}
                print(dumps(row), file=out, flush=True)
                print("." if dead else f"\n{mutant}", end="", flush=True, file=sys.stderr)
                alive |= set() if dead else {mutant.file}
                run.add(mutant.file)
                yield mutant, dead
        for file in run - alive:  # tests that fail anyway would kill everything
            if not _passes(Path(scratch), TESTS[file]):
                raise SystemExit(f"the tests of {file} fail without any change: its score means nothing")


if __name__ == "__main__":
    main()
