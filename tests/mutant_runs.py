"""Run tests on mutants, each in a fork of one pytest session that has collected all tests.

First each test runs once on the unchanged code, to learn how long it takes and which lines it runs. A mutant
is then tested only by tests that run its line, up to a total time. Quick tests come first, and those that
killed other mutants of the file; later variants of one test function come late.

Nothing is imported again: in its fork, a mutant's functions and constants replace those of the package.
"""

import gc
import hashlib
import importlib.util
import inspect
import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import pytest

from mutant_changes import Mutant

WORKERS = 2
LONGEST = 5.0  # seconds; tests that take longer are not used
CALLS = 20  # so many calls of a function are watched in a test: more rarely show new lines, and take time
WORDS = ["-qq", "-s", "-n", "0", "-p", "no:cacheprovider", "--hypothesis-seed=0"]

BROKEN = 99  # the exit code of a fork that ended with an exception: the mistake is here, not in a mutant

# where things that are made of a function keep it
_WRAPPERS = {classmethod: "__func__", staticmethod: "__func__", property: "fget", cached_property: "func"}

Kill = tuple[str, str]  # a file, and a test that killed a mutant of it
Job = tuple[Any, float, Callable[[Path], int]]  # a key, its most seconds, and what the fork does


def copied(root: Path, tree: Path) -> None:
    """Copy what tests need, so that the code may be edited during a run."""
    for name in ("src", "tests", "benchmarks", "docs", "examples", "pyproject.toml"):
        if (root / name).is_dir():
            shutil.copytree(root / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(root / name, tree)


# ---- forks


def forked(jobs: Iterable[Job], scratch: Path) -> Iterator[tuple[Any, int | None, str]]:
    """Run each job in a fork, `WORKERS` at a time. Yield (key, exit code, output).

    The function of a job writes its output to the path that it gets. The code is None if it takes too long.
    """
    running: dict[int, tuple[Any, float, Path]] = {}
    jobs, waiting, number = iter(jobs), True, 0
    while waiting or running:
        while waiting and len(running) < WORKERS:
            job = next(jobs, None)
            waiting = job is not None
            if job is not None:
                key, seconds, function = job
                number, out = number + 1, scratch / f"output-{number}"
                running[_fork(function, out)] = key, time.monotonic() + seconds, out
        time.sleep(0.005)
        for child, (key, until, out) in list(running.items()):
            done, status = os.waitpid(child, os.WNOHANG)
            if not done and time.monotonic() < until:
                continue
            if not done:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
            del running[child]
            text = out.read_text() if out.exists() else ""
            out.unlink(missing_ok=True)
            if done and os.waitstatus_to_exitcode(status) == BROKEN:
                raise RuntimeError(f"{key} ended with an exception:\n{text}")
            yield key, os.waitstatus_to_exitcode(status) if done else None, text


def _fork(function: Callable[[Path], int], out: Path) -> int:
    child = os.fork()
    with suppress(OSError):
        os.setpgid(child, child)  # a group of its own, to end all that it starts; both do it, the first wins
    if child == 0:
        try:
            for number in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), number)
            os._exit(function(out))
        except BaseException:
            out.write_text(traceback.format_exc())
        finally:
            os._exit(BROKEN)
    return child


# ---- the package, and changes of it


class _Package(MetaPathFinder):
    """Imports sketchy from a tree, whatever is installed."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name.split(".")[0] != "sketchy":
            return None
        base = self.tree / "src" / Path(*name.split("."))
        file = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
        return importlib.util.spec_from_file_location(name, file) if file.exists() else None


def _apply(mutant: Mutant, tree: Path) -> bool:
    """Change the imported package: functions, their defaults, and constants wherever they were imported.

    Return whether the changed file can be imported.
    """
    path = str(tree / mutant.file)
    ours = [m for m in sys.modules.values() if str(getattr(m, "__file__", None)).startswith(str(tree))]
    (old,) = (module for module in ours if module.__file__ == path)
    new = ModuleType(old.__name__)
    try:
        exec(compile(mutant.source(tree), path, "exec"), vars(new))
    except Exception:
        return False
    for name, value in vars(new).items():
        before = vars(old).get(name)
        if isinstance(value, type) and value.__module__ == new.__name__:
            for key, part in vars(value).items():
                _replace(before, key, vars(before).get(key), part)
        else:
            for module in ours:
                if vars(module).get(name) is before:
                    _replace(module, name, before, value)
    return True


def _forget() -> None:
    """Empty the caches of the package: what an earlier test left there would hide the lines that made it."""
    for name, module in list(sys.modules.items()):
        for value in list(vars(module).values()) if name.split(".")[0] == "sketchy" else ():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def _replace(owner: Any, name: str, old: Any, new: Any) -> None:
    old_function, new_function = _function(old), _function(new)
    if old_function is not None and new_function is not None:
        if old_function.__code__.co_filename == new_function.__code__.co_filename:
            for part in ("__code__", "__defaults__", "__kwdefaults__"):
                setattr(old_function, part, getattr(new_function, part))
    elif not name.startswith("__") and _plain(new) and new != old:
        setattr(owner, name, new)


def _function(value: Any) -> FunctionType | None:
    """The function in a method, property, or cache."""
    value = inspect.unwrap(getattr(value, _WRAPPERS.get(type(value), ""), value))
    return value if type(value) is FunctionType else None


def _plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_plain, value.values()))
    if isinstance(value, tuple | frozenset):
        return all(map(_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


# ---- tests in a session


def session(tree: Path, tests: Sequence[str], plugin: object) -> int:
    """A session of pytest on a tree, in this process."""
    os.chdir(tree)
    sys.path[:0] = [str(tree / "src"), str(tree / "tests"), str(tree)]
    os.environ |= {"SKETCHY_EXAMPLES": "25", "PYTHONPATH": str(tree / "src")}
    sys.meta_path.insert(0, _Package(tree))
    return int(pytest.main([*WORDS, *tests], plugins=[plugin]))


@dataclass(frozen=True)
class Test:
    name: str
    seconds: float  # of this process, on the unchanged code, while it was watched
    lines: dict[str, int]  # of each file: bit i is set if the test runs line i


class Runs:
    """A plugin: instead of running all tests, the session calls ``work`` with this object."""

    def __init__(self, tree: Path, scratch: Path, work: Callable[["Runs"], None]) -> None:
        self.tree, self.scratch, self.work = tree, scratch, work
        self.items: dict[str, pytest.Item] = {}
        self.good = True  # whether the test that runs, or ran last, has passed up to now

    def pytest_runtestloop(self, session: pytest.Session) -> bool:

        import sketchy

        assert str(sketchy.__file__).startswith(str(self.tree)), f"{sketchy.__file__} is tested"
        self.items = {item.nodeid: item for item in session.items}
        gc.collect()
        gc.freeze()  # forks then share this memory
        self.work(self)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.good &= not report.failed

    def passes(self, name: str) -> bool:
        self.good, item = True, self.items[name]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return self.good

    # -- on the unchanged code

    def measured(self, kept: Path) -> list[Test]:
        """All tests that pass on the unchanged code. Results of test files that have not changed are kept."""
        common, files = hashlib.sha256(), defaultdict(list)
        for path in sorted([*self.tree.glob("src/**/*.py"), *self.tree.glob("tests/**/*.py")]):
            if not path.name.startswith(("test_", "mutant")):
                common.update(path.read_bytes())
        for name in self.items:
            files[name.split("::")[0]].append(name)
        keys = {
            file: hashlib.sha256(common.digest() + (self.tree / file).read_bytes()).hexdigest()[:16]
            for file in files
        }
        known = json.loads(kept.read_text()) if kept.exists() else {}
        jobs = (
            (f, 1200.0, lambda out, f=f: self._watch(files[f], out)) for f in files if keys[f] not in known
        )
        for file, code, text in forked(jobs, self.scratch):
            if code != 0:
                raise SystemExit(f"{file}: ended with {code} on the unchanged code")
            known[keys[file]] = json.loads(text)
            kept.write_text(json.dumps(known))
            print(f"{file}: {len(known[keys[file]])} of {len(files[file])} tests pass", file=sys.stderr)
        return [
            Test(name, seconds, {path: int(bits, 16) for path, bits in lines.items()})
            for file in files
            for name, (seconds, lines) in known[keys[file]].items()
            if seconds < LONGEST and name in self.items
        ]

    def _watch(self, names: Sequence[str], out: Path) -> int:
        """Write the time of each test that passes, and the lines of the package that it runs."""
        source, found = str(self.tree / "src") + os.sep, {}
        for name in names:
            lines, calls = defaultdict[str, set[int]](set), Counter[CodeType]()

            def watch(
                frame: FrameType, event: str, argument: object, lines: Any = lines, calls: Any = calls
            ) -> Any:
                if event != "call":
                    lines[frame.f_code.co_filename].add(frame.f_lineno)
                    return watch
                calls[frame.f_code] += 1
                inside = frame.f_code.co_filename.startswith(source)
                return watch if inside and calls[frame.f_code] <= CALLS else None

            _forget()
            start = time.process_time()
            threading.settrace(watch)  # for threads that the test starts (`ranks.on_threads`)
            sys.settrace(watch)
            passed = self.passes(name)
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            if passed:
                bits = {file: hex(sum(1 << line for line in seen)) for file, seen in lines.items()}
                own = {str(Path(file).relative_to(self.tree)): value for file, value in bits.items()}
                found[name] = time.process_time() - start, own
        out.write_text(json.dumps(found))
        return 0

    def first_failure(self, names: Sequence[str]) -> str:
        """The first of the tests that fails on the unchanged code; empty if none does."""
        ((_, code, text),) = forked([(None, 1200.0, lambda out: self._test(names, None, out))], self.scratch)
        return text or ("" if code == 0 else f"exit code {code}")

    # -- mutants

    def killers(
        self, mutants: Iterable[Mutant], tests: Sequence[Test], kills: Counter[Kill], most: float
    ) -> Iterator[tuple[Mutant, str | None]]:
        """Each mutant and what killed it: a test, import, time or an exit code; None if it survived."""

        def jobs() -> Iterator[Job]:
            for mutant in mutants:
                own = _chosen(mutant, tests, kills, most)
                names, limit = [test.name for test in own], 60 + 10 * sum(test.seconds for test in own)
                yield mutant, limit, lambda out, mutant=mutant, names=names: self._test(names, mutant, out)

        for mutant, code, text in forked(jobs(), self.scratch):
            kills[mutant.file, text] += 1
            yield mutant, None if code == 0 else text or ("time" if code is None else f"exit code {code}")

    def _test(self, names: Sequence[str], mutant: Mutant | None, out: Path) -> int:
        """Run tests until one fails, and write its name."""
        if mutant is not None and not _apply(mutant, self.tree):
            out.write_text("import")
            return 1
        failed = next((name for name in names if not self.passes(name)), "")
        out.write_text(failed)
        return int(bool(failed))


def _chosen(mutant: Mutant, tests: Sequence[Test], kills: Counter[Kill], most: float) -> list[Test]:
    """The tests of a mutant, in the order in which they run. Together they take at most so many seconds."""
    lines = sum(1 << line for line in range(mutant.first, mutant.last + 1)) if mutant.last else -1
    able = sorted((t for t in tests if t.lines.get(mutant.file, 0) & lines), key=lambda t: t.seconds)
    variant, order = Counter[str](), list[tuple[float, Test]]()
    for test in able:
        function = test.name.split("[")[0]
        variant[function] += 1
        hope = kills[mutant.file, test.name] + 0.2 / variant[function]
        order.append(((test.seconds + 0.01) / hope, test))
    result, total = list[Test](), 0.0
    for _, test in sorted(order, key=lambda pair: pair[0]):
        total += test.seconds
        if total <= most:
            result.append(test)
    return result
