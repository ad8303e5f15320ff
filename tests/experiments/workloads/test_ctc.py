"""CTC beside a sum over all paths, greedy decoding by hand, word errors beside jiwer's."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sketchy.experiments.workloads.conformer.ctc import ctc_losses, edit_distance, greedy, word_errors
from sketchy.experiments.workloads.conformer.recordings import spelled, text

WORDS = st.lists(st.sampled_from(["the", "cat", "sat", "a"]), max_size=6)


def collapsed(path: tuple[int, ...]) -> list[int]:
    return [piece for i, piece in enumerate(path) if piece and (i == 0 or path[i - 1] != piece)]


@pytest.mark.parametrize("target", [[1], [2, 1], [1, 1], [2, 2]])
def test_the_loss_is_minus_the_log_of_the_probability_of_all_paths(target: list[int]) -> None:
    logits = torch.randn(1, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores = logits[0, :3].log_softmax(1)
    total = sum(
        math.exp(sum(float(scores[t, piece]) for t, piece in enumerate(path)))
        for path in itertools.product(range(3), repeat=3)
        if collapsed(path) == target
    )
    targets, counts = torch.tensor([target]), torch.tensor([len(target)])
    loss = ctc_losses(logits, torch.tensor([3]), targets, counts)  # the fourth frame is padding
    assert float(loss) == pytest.approx(-math.log(total), rel=1e-5)


def test_a_row_with_more_pieces_than_its_frames_can_hold_counts_nothing() -> None:
    logits = torch.randn(2, 2, 3, requires_grad=True)
    targets = torch.tensor([[1, 1], [1, 2]])  # two equal pieces need a blank between them
    losses = ctc_losses(logits, torch.tensor([2, 2]), targets, torch.tensor([2, 2]))
    losses.sum().backward()
    assert losses[0] == 0 and losses[1] > 0 and not logits.grad[0].any() and logits.grad[1].any()


def test_decoding_drops_repetitions_then_blanks() -> None:
    paths = torch.tensor([[0, 1, 1, 0, 1, 2, 2], [3, 3, 0, 0, 3, 1, 1]])
    logits = torch.nn.functional.one_hot(paths, 4).float()
    assert greedy(logits, torch.tensor([7, 5])) == [[1, 1, 2], [3, 3]]


@given(WORDS, WORDS)
def test_the_edit_distance_is_a_distance_and_of_words_it_is_jiwers(one: list[str], other: list[str]) -> None:
    found = edit_distance(one, other)
    assert found == edit_distance(other, one)
    assert abs(len(one) - len(other)) <= found <= max(len(one), len(other))
    assert (found == 0) == (one == other)
    jiwer = pytest.importorskip("jiwer")
    if other:
        assert found == round(jiwer.wer(" ".join(other), " ".join(one)) * len(other))


@given(st.lists(st.tuples(WORDS, WORDS.filter(bool)), min_size=1, max_size=5))
def test_the_word_error_rate_of_several_texts_is_jiwers(pairs: list[tuple[list[str], list[str]]]) -> None:
    jiwer = pytest.importorskip("jiwer")
    found, expected = ([" ".join(words) for words in column] for column in zip(*pairs, strict=True))
    errors, words = word_errors(found, expected)
    assert errors / words == pytest.approx(jiwer.wer(expected, found))


def test_pieces_spell_words() -> None:
    spelling = spelled(["", " the", " ca", "t", "é"])
    assert text([1, 2, 3], spelling) == "the cat"
    assert text([2, 4], spelling) == "caé"
    assert text([], spelling) == ""
