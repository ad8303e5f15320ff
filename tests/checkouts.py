"""A copy of the repository that a test may add to."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


class Checkout:
    """The sources, tests, docs and benchmarks in ``directory``, without results of measurements."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in ("src", "tests", "docs", "benchmarks"):
            skipped = shutil.ignore_patterns("__pycache__", "results", "*.png")
            shutil.copytree(ROOT / name, directory / name, ignore=skipped)
        shutil.copy(ROOT / "pyproject.toml", directory)

    def add_file(self, path: str, text: str) -> None:
        file = self.directory / path
        assert not file.exists()
        file.write_text(text, encoding="utf-8")

    def add(self, path: str, after: str, text: str) -> None:
        """Insert ``text`` after the only occurrence of ``after``."""
        file = self.directory / path
        before = file.read_text(encoding="utf-8")
        assert before.count(after) == 1
        file.write_text(before.replace(after, after + text), encoding="utf-8")

    def python(self, *arguments: str) -> str:
        """The output of Python with this package. The exit status must be 0."""
        places = os.pathsep.join(str(self.directory / place) for place in ("src", ""))
        done = subprocess.run(
            (sys.executable, *arguments),
            cwd=self.directory,
            env={**os.environ, "PYTHONPATH": places, "COLUMNS": "100", "PYTEST_ADDOPTS": ""},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def sketchy(self, *words: str) -> str:
        """The output of a command."""
        return self.python("-c", "from sketchy.cli import main; main()", *words)

    def passed(self, *tests: str, about: str) -> int:
        """How many of these tests with ``about`` in their names pass; none may fail."""
        said = self.python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", about, *tests)
        return int(said.splitlines()[-1].split()[0])

    def docs_table(self, name: str) -> str:
        """A table of the docs as `python -m benchmarks.pages` writes it."""
        return self.python("-c", f"from benchmarks.pages import TABLES; print(TABLES[{name!r}]())")
