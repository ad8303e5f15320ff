"""A new learner or command needs one file and one line; after that it works everywhere."""

import json
from pathlib import Path

import pytest

pytest.importorskip("tyro")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
pytest.importorskip("plotly")

from checkouts import Checkout

LEARNER = '''
from torch import Tensor

from sketchy.oco.learner import Learner
from sketchy.oco.norm import Norm


class Toy(Learner):
    """Toy: w ← w - η g."""

    name = "toy"

    def _step(self, g: Tensor) -> Tensor:
        return self.eta * g

    def _norm(self) -> Norm | None:
        return None
'''

COMMAND = '''
from pathlib import Path

from sketchy.cli.mistakes import user_mistakes


def toy(rounds: int = 4, out: Path = Path("runs/toy")) -> None:
    """Write two rows of a regret.

    Example: sketchy toy --rounds 8

    Args:
        rounds: Rounds of the first row.
        out: Directory for the results.
    """
    from json import dumps

    with user_mistakes("sketchy toy"):
        if rounds < 1:
            raise ValueError(f"rounds={rounds}: must be at least 1")
        out.mkdir(parents=True, exist_ok=True)
    rows = [{"learner": "toy", "rounds": T, "bound": 2.0, "regret": 1.0} for T in (rounds, 2 * rounds)]
    (out / "results.jsonl").write_text("".join(dumps(row) + "\\n" for row in rows))
'''


def reported(checkout: Checkout, run: str) -> str:
    """The HTML page of a run."""
    checkout.sketchy("report", run, "--out", "page.html")
    return (checkout.directory / "page.html").read_text(encoding="utf-8")


def test_a_learner_is_one_file_and_one_line_in_the_registry(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "checkout")
    checkout.add_file("src/sketchy/oco/toy.py", LEARNER)
    registered = "from sketchy.oco.son import SON as SON\n"
    checkout.add("src/sketchy/oco/__init__.py", registered, "from sketchy.oco.toy import Toy as Toy\n")
    # the common promises and the regret bound
    assert checkout.passed("tests/oco", about="toy") > 10
    assert "son, toy." in " ".join(checkout.sketchy("oco", "--help").replace("│", " ").split())
    run = ("--data", "digits", "--rows", "40", "--grid", "2", "--processes", "1", "--out", "run")
    assert " toy " in checkout.sketchy("oco", *run, "--learners", "ogd", "toy")
    assert "| toy |" in (checkout.directory / "run" / "table.md").read_text()
    assert ">toy<" in reported(checkout, "run")
    assert "| `toy` | Toy: w ← w - η g. |" in checkout.docs_table("learners")


def test_a_command_is_one_function_and_one_entry_in_the_list(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "checkout")
    checkout.add_file("src/sketchy/cli/toy.py", COMMAND)
    checkout.add("src/sketchy/cli/__init__.py", "COMMANDS = (", '"toy", ')
    assert "  toy             Write two rows of a regret." in checkout.sketchy("--help")
    # help without torch, its examples, exit statuses, words for errors
    assert checkout.passed("tests/cli/test_every_command.py", about="toy") > 8
    assert checkout.sketchy("toy", "--out", "run") == ""
    rows = (checkout.directory / "run" / "results.jsonl").read_text().splitlines()
    assert [json.loads(row)["rounds"] for row in rows] == [4, 8]
    assert "toy regret" in reported(checkout, "run")
    assert "| `sketchy toy` | Write two rows of a regret. |" in checkout.docs_table("commands")
