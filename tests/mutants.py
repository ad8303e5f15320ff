"""Mutation testing: small changes to the math, each of which some test must notice.

`make mutants` (python tests/mutants.py) changes one operator, comparison, constant or min/max at a time
(`mutant_changes.py`) and runs tests that run the changed line (`mutant_runs.py`). It prints the mutants that
survive, and the score of each group of files. Results are kept in runs/mutants.jsonl, so a stopped run
resumes. A changed file is done again, and `--again` repeats the survivors.
"""

import argparse
import hashlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from mutant_changes import Mutant, mutants_of
from mutant_equivalents import is_same, outdated
from mutant_runs import Runs, copied, session

ROOT = Path(__file__).parents[1]
# `core/tuned/sizes.py` is left out: its numbers change how work is cut, and no result.
GROUPS = {
    "core": [
        "src/sketchy/core/*.py",
        "src/sketchy/core/tuned/[!s]*.py",
        "src/sketchy/frequent_directions.py",
    ],
    "optimizers": [f"src/sketchy/optim/{name}.py" for name in ("step", "stack", "descend", "parts/*")],
}
# the tests of the math; others are of files, frameworks, memory and messages
TESTS = [
    *("tests/core/test_*.py", "tests/test_frequent_*.py"),
    *("tests/oco/test_every_learner.py", "tests/oco/test_regret_bounds.py"),
    *(f"tests/optim/test_{name}.py" for name in (
        "bad_gradients", "descend", "equalities", "every_optimizer", "few_bits", "grafts", "lengths",
        "new_parts", "no_device_reads", "precision", "sharded_in_threads", "silence", "stored_certificates",
        "unseen_directions", "update_every",
    )),
    *(f"src/sketchy/{name}.py" for name in ("core/bounds", "core/regret", "frequent_directions")),
]  # fmt: skip


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help="by default, all of `GROUPS`")
    parser.add_argument("--sample", type=int, help="so many mutants, drawn at random; all if not given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=15.0, help="stop after this time; then resume")
    parser.add_argument("--seconds", type=float, default=20.0, help="of tests for one mutant")
    parser.add_argument("--again", action="store_true", help="repeat the survivors of earlier runs")
    options = parser.parse_args(words)
    group_of = {file: group for group, patterns in GROUPS.items() for file in _files(patterns)}
    every = {file: mutants_of(ROOT, file) for file in group_of}
    if gone := list(outdated(mutant for own in every.values() for mutant in own)):
        raise SystemExit("mutants that are listed as equivalent, and no longer exist:\n" + "\n".join(gone))
    if unknown := sorted(set(options.files) - every.keys()):
        parser.error(f"{', '.join(unknown)}: not among the files of `GROUPS`, which are the math")
    mutants = [mutant for file in options.files or every for mutant in every[file]]
    mutants.sort(key=lambda mutant: random.Random(f"{options.seed} {mutant.file} {mutant.change}").random())
    mutants = mutants[: options.sample]  # at random, and the same ones when other lines change
    same = [mutant for mutant in mutants if is_same(mutant)]
    rest = [mutant for mutant in mutants if mutant not in set(same)]
    found = _results(rest, options)
    for mutant, killer in found.items():
        if killer is None:
            print(f"survived: {mutant}")
    for group in dict.fromkeys(group_of[mutant.file] for mutant in mutants):
        ran = [killer for mutant, killer in found.items() if group_of[mutant.file] == group]
        equal, left = (
            sum(group_of[m.file] == group for m in some) for some in (same, set(rest) - set(found))
        )
        score = 100 * (1 - ran.count(None) / max(1, len(ran)))
        print(f"{group}: {score:.1f} % of {len(ran)} killed; {equal} change no result, {left} not run")


def _files(patterns: list[str]) -> list[str]:
    return [str(path.relative_to(ROOT)) for pattern in patterns for path in sorted(ROOT.glob(pattern))]


def _results(mutants: list[Mutant], options: argparse.Namespace) -> dict[Mutant, str | None]:
    """What killed each mutant, now or in an earlier run on the same file; None if nothing did."""
    path = ROOT / "runs" / "mutants.jsonl"
    path.parent.mkdir(exist_ok=True)
    files = {mutant.file for mutant in mutants}
    content = {file: hashlib.sha256((ROOT / file).read_bytes()).hexdigest()[:16] for file in files}
    text = path.read_text() if path.exists() else ""
    rows = [json.loads(line) for line in text.splitlines() if line.endswith("}")]  # the last may be a part
    known = {(row["content"], row["start"], row["change"]): row["killer"] for row in rows}
    kills = Counter((row["file"], row["killer"]) for row in rows)
    found, left = dict[Mutant, str | None](), list[Mutant]()
    for mutant in mutants:
        key = content[mutant.file], mutant.start, mutant.change
        if key in known and (known[key] or not options.again):
            found[mutant] = known[key]
        else:
            left.append(mutant)

    def work(runs: Runs) -> None:
        tests = runs.measured(path.with_name("mutants-tests.json"))
        until, used = time.monotonic() + 60 * options.minutes, set[str]()
        jobs = (mutant for mutant in left if time.monotonic() < until)
        with path.open("a") as out:
            for mutant, killer in runs.killers(jobs, tests, kills, options.seconds):
                row = {**asdict(mutant), "content": content[mutant.file], "killer": killer}
                print(json.dumps(row, ensure_ascii=False), file=out, flush=True)
                print("." if killer else f"\n{mutant}", end="", flush=True, file=sys.stderr)
                found[mutant] = killer
                used |= {killer} if killer in runs.items else set()
        if broken := runs.first_failure(sorted(used)):
            raise SystemExit(f"{broken} fails without any change: the score means nothing")

    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        scratch, tree = Path(name).resolve(), Path(name).resolve() / "tree"
        tree.mkdir()
        copied(ROOT, tree)
        if left and session(tree, _files(TESTS), Runs(tree, scratch, work)):
            raise SystemExit("pytest could not collect the tests")
    return found


if __name__ == "__main__":
    main()
