"""The list of equivalent mutants fits the code (the mutation run itself is `make mutants`)."""

from mutant_changes import mutants_of
from mutant_equivalents import SAME, is_same, outdated
from mutants import ROOT


def test_every_listed_mutant_exists() -> None:
    mutants = [mutant for file in SAME for mutant in mutants_of(ROOT, file)]
    assert not list(outdated(mutants))
    assert all(any(is_same(mutant) for mutant in mutants if mutant.file == file) for file in SAME)


def test_what_is_listed_and_gone_is_found() -> None:
    assert list(outdated([]))
