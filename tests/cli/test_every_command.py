"""Common tests of all commands, in one table: help, machine-readable results, exit status, messages."""

import importlib
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tyro")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

from sketchy.cli import COMMANDS, command, main
from sketchy.cli.mistakes import EXTRAS
from sketchy.extras import missing

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Case:
    """A command as it is used: OUT stands for a fresh directory, RUN for one with rows."""

    run: str  # quick, and ends well
    mistake: str  # options that tyro takes and the command doesn't
    says: str  # of that mistake
    file: str | None = None  # for machines; standard output if None


CASES = {
    "demo": Case(
        "--steps 2 --seeds 1 --rates 0.01 --rank 4 --out OUT", "--rank 1 --out OUT", "rank=1", "rows.jsonl"
    ),
    "doctor": Case(
        "--device cpu --quick --width 16 --rank 4 --out OUT", "--device no --out OUT", "'no'", "doctor.json"
    ),
    "memory": Case("--shape 30x20 --json", "--shape 4*4", "shape='4*4'"),
    "sketch": Case("--ranks 4 --out OUT", "--ranks --out OUT", "ranks is empty", "rows.jsonl"),
    "spectra": Case("--steps 2 --every 2 --json --out OUT", "--task nope --out OUT", "no such task"),
    "oco": Case(
        "--data digits --rows 40 --grid 2 --learners ogd --processes 1 --out OUT",
        "--data nothing --out OUT",
        "no such file",
        "results.jsonl",
    ),
    "counterexample": Case(
        "--rounds 50 100 --seeds 1 --out OUT", "--rounds 4 --out OUT", "rounds=4", "results.jsonl"
    ),
    "train": Case(
        "gnn --scale tiny --set steps=2 --out OUT", "gnn --scale tiny --set stps=2", "stps=2: no such setting"
    ),
    "tune": Case(
        "gnn --scale tiny --optimizers adamw muon --trials 1 --set tuning_steps=2 --json --out OUT",
        "gnn --scale tiny --trials 0",
        "trials=0: must be at least 1",
    ),
    "bench": Case("--json", "nothing", "no such benchmark"),
    "report": Case("RUN --json --out OUT/x.html", "OUT", "holds no results of a run"),
}


def status(*words: str) -> int:
    """The exit status of a command."""
    try:
        main(words)
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def words(text: str, out: Path) -> list[str]:
    if "RUN" in text:
        pytest.importorskip("plotly")
        row = {"learner": "ogd", "rounds": 4, "bound": 2.0, "regret": 1.0}
        (out / "run").mkdir()
        (out / "run" / "results.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps(row | {'rounds': 8})}\n")
    return [word.replace("OUT", str(out)).replace("RUN", str(out / "run")) for word in text.split()]


def replaced(monkeypatch: pytest.MonkeyPatch, name: str, body: Callable[..., None]) -> None:
    """The command with its own options, but another function body."""
    module = importlib.import_module(f"sketchy.cli.{name}")
    monkeypatch.setattr(module, name, wraps(getattr(module, name))(body))


def raising(error: BaseException) -> Callable[..., None]:
    def body(*args: Any, **options: Any) -> None:
        raise error

    return body


def examples(name: str) -> list[list[str]]:
    """The examples of a command's help, in words, without the program's name."""
    lines = (command(name).__doc__ or "").splitlines()
    found = [line.split()[1:] for line in lines if line.strip().startswith("Example: ")]
    assert found and all(words[:2] == ["sketchy", name] for words in found)
    return [words[1:] for words in found]


def case(name: str) -> Case:
    """The row of a command. Checks that don't need a row also run for a command without one."""
    if name not in CASES:
        pytest.skip(f"the table CASES has no row for {name}")
    return CASES[name]


@pytest.mark.parametrize("asked", [(), *((name,) for name in COMMANDS)], ids=" ".join)
def test_help_takes_under_a_second_and_no_torch(asked: tuple[str, ...]) -> None:
    code = "import sys; from sketchy.cli import main\ntry: main()\nfinally: print(*sys.modules, sep='\\n')"
    before = os.times()
    ended = subprocess.run([sys.executable, "-c", code, *asked, "--help"], capture_output=True, text=True)
    after = os.times()
    assert ended.returncode == 0, ended.stderr
    loaded = {line.partition(".")[0] for line in ended.stdout.splitlines()}
    assert loaded >= {"tyro", "sketchy"}
    assert not loaded & {"torch", "numpy", "sklearn", "matplotlib", "plotly"}
    seconds = (after.children_user - before.children_user) + (after.children_system - before.children_system)
    assert seconds < 1  # of the processor: others may keep it busy


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example_which_the_command_understands(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert status(name, "--help") == 0
    shown = [line.strip() for line in capsys.readouterr().out.splitlines()]
    taken = []
    replaced(monkeypatch, name, lambda *args, **options: taken.append(options))
    for example in examples(name):
        assert f"Example: sketchy {' '.join(example)}" in shown
        assert status(*example) == 0, example
    assert len(taken) == len(examples(name))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_run_ends_with_0_and_leaves_what_a_machine_reads(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = case(name)
    assert status(name, *words(given.run, tmp_path)) == 0
    said = capsys.readouterr().out
    if given.file is None:
        assert json.loads(said)
    else:
        assert all(json.loads(line) for line in (tmp_path / given.file).read_text().splitlines())


@pytest.mark.parametrize("name", COMMANDS)
def test_a_mistake_is_one_sentence_and_2_and_debug_shows_where(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = case(name)
    asked = words(given.mistake, tmp_path)
    assert status(name, *asked) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"sketchy {name}: ") and said.err.count("\n") == 1
    assert given.says in said.err and said.out == ""
    assert status(name, "--debug", *asked) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option_is_2(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(name, "--no-such-option") == 2
    assert "--no-such-option" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (RuntimeError("boom\nand more"), 1, "failed with RuntimeError: boom; --debug shows where"),
        (MemoryError(), 1, "failed with MemoryError; --debug shows where"),
        (KeyboardInterrupt(), 130, "stopped"),
        (
            ModuleNotFoundError("No module", name="matplotlib.figure"),
            1,
            "matplotlib is missing; pip install '.[plots]' in a clone of sketchy brings it",
        ),
        (ImportError("x is missing; get it", name="x"), 1, "x is missing; get it"),
        (
            ImportError("cannot import name", name="sketchy.core"),
            1,
            "failed with ImportError: cannot import name; --debug shows where",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_what_nobody_foresaw_is_one_sentence_and_its_status(
    name: str,
    error: BaseException,
    code: int,
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replaced(monkeypatch, name, raising(error))
    asked = examples(name)[0]
    assert status(*asked) == code
    assert capsys.readouterr().err == f"sketchy {name}: {says}\n"
    assert status(*asked, "--debug") == code
    shown = capsys.readouterr().err
    assert "Traceback" in shown and shown.endswith(f"sketchy {name}: {says}\n")


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "bench"])
def test_what_follows_two_dashes_is_refused_where_nobody_takes_it(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(name, "--", "--debug") == 2
    assert capsys.readouterr().err == f"sketchy {name}: takes no arguments after --\n"


def test_no_command_and_no_such_command_are_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert status() == 2
    assert "usage: sketchy COMMAND" in capsys.readouterr().out
    assert status("nothing") == 2
    assert capsys.readouterr().err.startswith("sketchy: unknown command 'nothing'; commands: demo, memory")


def test_a_reader_who_has_enough_meets_no_traceback() -> None:
    code = "import sys; sys.stdout.write('x' * 10**6); from sketchy.cli import main; main(['--help'])"
    code = (
        f"from sketchy.cli.mistakes import last_words\nwith last_words('sketchy', debug=False):\n    {code}"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 1


@pytest.mark.parametrize(
    ("package", "extra", "asked"),
    [
        ("matplotlib", "plots", "memory --shape 9x9 --plot OUT/x.png"),
        ("plotly", "report", "report RUN --out OUT/x.html"),
    ],
)
def test_a_package_that_is_missing_is_named_with_its_extra(
    package: str,
    extra: str,
    asked: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = words(asked, tmp_path)
    for module in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, "sketchy.experiments.plot", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    assert status(*given) == 1
    says = f"sketchy {given[0]}: {missing(package, extra)}\n"
    assert capsys.readouterr().err == says


def test_extras_are_those_of_the_project() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for module, extra in EXTRAS.items():
        package = {"sklearn": "scikit-learn"}.get(module, module)
        assert any(wanted.startswith(f"{package}>=") for wanted in extras[extra]), module
        assert extra in extras["all"][0]


def test_every_public_name_loads_when_it_is_used() -> None:
    import ast

    import sketchy

    tree = ast.parse(Path(sketchy.__file__).read_text())
    promised = {
        alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
    } - {"import_module", "TYPE_CHECKING", "Any"}
    assert {"core", "SketchyShampoo"} < promised <= set(dir(sketchy))
    assert all(getattr(sketchy, name).__name__.endswith(name) for name in promised)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        sketchy.nothing  # noqa: B018


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_the_terminal_and_optional_arguments_look_so(name: str) -> None:
    environment = os.environ | {"COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
    ended = subprocess.run(
        [sys.executable, "-m", "sketchy", name, "--help"], capture_output=True, text=True, env=environment
    )
    assert ended.returncode == 0
    assert max(map(len, ended.stdout.splitlines())) <= 80
    assert "None" not in ended.stdout and "--no-" not in ended.stdout
    absent = [p.name for p in signature(command(name)).parameters.values() if p.default is None]
    assert ended.stdout.count("(optional)") == len(absent)


def test_python_runs_the_package_as_the_command() -> None:
    told = [
        subprocess.run([*words, "--version"], capture_output=True, text=True, check=True).stdout
        for words in ([sys.executable, "-m", "sketchy"], [str(Path(sys.executable).with_name("sketchy"))])
    ]
    assert told[0] == told[1] and told[0].strip()


def test_a_misspelt_command_or_option_is_answered_with_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert status("meory") == 2
    assert capsys.readouterr().err == "sketchy: unknown command 'meory'; did you mean memory?\n"
    for name, slip, meant in (("memory", "--shpae", "--shape"), ("demo", "--rnk", "--rank")):
        assert status(name, slip, "3") == 2
        said = capsys.readouterr().err
        assert "Perhaps you meant" in said and meant in said
