"""Speech: strings of digits with held-out speakers, LibriSpeech's folders, damaged recordings."""

import itertools
import json
import shutil
import sys
import wave
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.workloads.places import SHARED, draw
from sketchy.experiments.workloads.conformer import Conformer
from sketchy.experiments.workloads.conformer.digits import LEVEL, Strings
from sketchy.experiments.workloads.conformer.librispeech import FOLDERS
from sketchy.experiments.workloads.conformer.recordings import text
from sketchy.experiments.workloads.conformer.takes import RATE
from sketchy.experiments.workloads.workload import Data

WORKLOAD = Conformer()
TINY = WORKLOAD.presets["tiny"].scale
NUMBERS = TINY.masks.numbers


# -- strings of digits --------------------------------------------------------------------------------


@cache
def digits() -> Data:
    try:
        return WORKLOAD.sources["fsdd"].open(SHARED, TINY)
    except ValueError as error:
        if "is not in" in str(error):
            pytest.skip(str(error).splitlines()[0])
        raise


def strings(noise: float, *clips: tuple[int, int]) -> Strings:
    """Of one speaker, whose clips are constant: (value, digit)."""
    return Strings(
        [[(np.full(4000, value, np.int16), digit) for value, digit in clips]],
        9,
        noise=noise,
        seed=0,
        numbers=NUMBERS,
    )


def test_speakers_of_validation_and_test_are_not_in_training_and_no_clip_is_in_two_splits() -> None:
    data = digits()
    splits = data.train, data.validation, data.test
    clips = [[clip.tobytes() for speaker in split.clips for clip, _ in speaker] for split in splits]
    assert [len(some) for some in clips] == [2000, 500, 500]
    assert len({clip for some in clips for clip in some}) == 3000
    assert [len(split.clips) for split in splits] == [4, 2, 2]
    assert [len(split) for split in splits] == [1000, 500, 500]


def test_a_string_is_2_to_4_clips_after_silences_and_its_pieces_are_its_digits() -> None:
    split = strings(200.0, (-300, 3), (500, 7))
    counts = set()
    for row in range(60):
        samples, pieces = split.recording(row, draw(row))
        begins = np.flatnonzero((samples[1:] != 0) & (samples[:-1] == 0)) + 1
        assert [8 if samples[i] > 0 else 4 for i in begins] == list(pieces), "one after each silence"
        assert np.sqrt(np.mean(samples.astype(float) ** 2)) == pytest.approx(LEVEL, rel=0.01)
        silent = len(samples) - 4000 * len(pieces)
        assert 0.025 * RATE * len(pieces) - 3 <= silent <= 0.15 * RATE * len(pieces) + 3
        counts.add(len(pieces))
    assert counts == {2, 3, 4}


def test_the_noise_is_so_many_decibels_below_the_string() -> None:
    loud, quiet = (strings(noise, (9000, 1)).recording(0, draw(0))[0].astype(float) for noise in (5.0, 200.0))
    ratio = np.mean(quiet**2) / np.mean((loud - quiet) ** 2)
    assert 10 * np.log10(ratio) == pytest.approx(5.0, abs=0.2)


def test_strings_to_validate_are_fixed_and_others_follow_from_the_numbers_of_their_row() -> None:
    split = strings(5.0, (1000, 3), (2000, 7), (500, 1))
    assert np.array_equal(split.recording(3, None)[0], split.recording(3, None)[0])
    assert not np.array_equal(split.recording(3, None)[0], split.recording(4, None)[0])
    one, again = split.batch([1, 2], draw), split.batch([2], draw)
    count = int(again["sample_counts"])
    assert torch.equal(one["samples"][1, :count], again["samples"][0]) and not one["samples"][1, count:].any()
    assert torch.equal(one["masks"][1:], again["masks"]) and "masks" not in split.batch([1], None)
    assert text(again["targets"][0][: int(again["target_counts"])].tolist(), again["spelling"]).split()


def test_splits_of_tones_differ() -> None:
    data = WORKLOAD.sources["synthetic"].open(Path(), TINY)
    first = [split.batch([0], None)["samples"] for split in (data.train, data.validation, data.test)]
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[1], first[2])


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A data directory with a clone of the data set: clips of 200 to 299 samples."""
    folder = tmp_path / "free-spoken-digit-dataset/recordings"
    folder.mkdir(parents=True)
    for i, name in enumerate(("george", "jackson", "lucas", "nicolas", "theo", "yweweler")):
        for digit, take in itertools.product(range(10), range(50)):
            with wave.open(str(folder / f"{digit}_{name}_{take}.wav"), "wb") as file:
                file.setnchannels(1), file.setsampwidth(2), file.setframerate(8000)
                file.writeframes(np.full(200 + digit + 10 * i, 100 * take + 1, "<i2").tobytes())
    return tmp_path


def test_a_clone_of_the_digits_is_read_as_published(clone: Path) -> None:
    data = WORKLOAD.sources["fsdd"].open(clone, TINY)
    for split, speakers, takes in (
        (data.train, range(4), range(50)),
        (data.validation, (4, 5), range(25)),
        (data.test, (4, 5), range(25, 50)),
    ):
        found = {(len(x) - 200, int(x[0]) // 100, digit) for clips in split.clips for x, digit in clips}
        assert found == {(d + 10 * i, take, d) for i in speakers for take in takes for d in range(10)}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("3_theo_7.wav", b"", "3_theo_7.wav: can't be read as a recording"),
        ("3_theo_7.wav", None, "recordings: has 499 recordings of theo; must be 500"),
        ("x_theo_7.wav", b"", "x_theo_7.wav: must be named DIGIT_SPEAKER_TAKE.wav"),
        ("3_theo_50.wav", b"", "3_theo_50.wav: must be named DIGIT_SPEAKER_TAKE.wav"),
    ],
)
def test_a_damaged_clone_is_named(name: str, content: bytes | None, message: str, clone: Path) -> None:
    path = clone / "free-spoken-digit-dataset/recordings" / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        WORKLOAD.sources["fsdd"].open(clone, TINY)


def test_a_clone_without_a_held_out_speaker_is_refused(clone: Path) -> None:
    for path in clone.rglob("*_theo_*.wav"):
        path.unlink()
    with pytest.raises(ValueError, match="no speaker 'theo', who is held out"):
        WORKLOAD.sources["fsdd"].open(clone, TINY)


def test_a_missing_set_of_digits_says_where_it_is_published(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"fsdd is not in .*free-spoken-digit-dataset"):
        WORKLOAD.sources["fsdd"].open(tmp_path, TINY)


# -- LibriSpeech --------------------------------------------------------------------------------------

SAID = ("HELLO WORLD", "THE CAT SAT", "A DOG RAN HOME", "IT IS LONG")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data directory with a tiny LibriSpeech: 2 speakers of 3 recordings, and one of 21 seconds."""
    soundfile = pytest.importorskip("soundfile", reason="the extra speech is not installed")
    pytest.importorskip("sentencepiece", reason="the extra speech is not installed")
    rng = np.random.default_rng(0)
    for folder in (folder for some in FOLDERS.values() for folder in some):
        for speaker in ("19", "26"):
            chapter, lines = tmp_path / "LibriSpeech" / folder / speaker / "7", []
            chapter.mkdir(parents=True)
            for i in range(3 if speaker == "19" else 4):
                name, seconds = f"{speaker}-7-{i:04}", 21 if i == 3 and folder == "train-clean-100" else 1
                soundfile.write(chapter / f"{name}.flac", 0.1 * rng.standard_normal(seconds * 16_000), 16_000)
                lines.append(f"{name} {SAID[i]}\n")
            (chapter / f"{speaker}-7.trans.txt").write_text("".join(lines))
    return tmp_path


def opened(directory: Path) -> Data:
    return WORKLOAD.sources["librispeech"].open(directory, TINY)


def test_long_utterances_are_left_out_and_texts_come_back_from_their_pieces(root: Path) -> None:
    data = opened(root)
    assert [len(split) for split in (data.train, data.validation, data.test)] == [20, 14, 7]
    assert data.note.startswith("train 20 of 21 utterances (published: 263,840)")
    assert data.train.lengths.tolist() == [16_000] * 20
    batch = data.test.batch([0, 5], draw)
    assert batch["samples"].dtype == torch.int16 and batch["samples"].shape == (2, 16_000)
    assert batch["masks"].shape == (2, NUMBERS)
    for row, said in enumerate((SAID[0], SAID[2])):
        pieces = batch["targets"][row][: int(batch["target_counts"][row])]
        assert pieces.min() > 0, "the blank is no target"
        assert pieces[-1] == 2, "the end of the sentence"
        assert text(pieces.tolist(), batch["spelling"]) == said.lower()


def test_pieces_are_learnt_once_and_kept(root: Path) -> None:
    first, kept = opened(root), root / "LibriSpeech" / "sketchy-pieces.model"
    content = kept.read_bytes()
    again = opened(root / "LibriSpeech")
    assert kept.read_bytes() == content
    assert all(np.array_equal(a, b) for a, b in zip(first.train.pieces, again.train.pieces, strict=True))
    kept.write_bytes(content[:20])
    with pytest.raises(ValueError, match=r"sketchy-pieces.model: .*remove it to make it again"):
        opened(root)


CHAPTER = Path("dev-other/26/7")
FLAC, TEXT = CHAPTER / "26-7-0001.flac", CHAPTER / "26-7.trans.txt"


def write(root: Path, samples: int, rate: int = 16_000, channels: int = 1) -> None:
    import soundfile

    soundfile.write(root / FLAC, np.zeros((samples, channels)), rate)


def test_lengths_are_kept_and_only_new_recordings_are_opened(root: Path) -> None:
    folder, damaged = root / "LibriSpeech/dev-other", root / "LibriSpeech" / FLAC
    lengths = opened(root).validation.lengths
    assert len(json.loads((folder / "sketchy-lengths.json").read_text())) == 7
    damaged.write_bytes(b"")  # its length is known
    assert torch.equal(opened(root).validation.lengths, lengths)
    damaged.rename(damaged.with_name("26-7-0009.flac"))
    (root / "LibriSpeech" / TEXT).write_text("26-7-0009 IT IS\n")
    with pytest.raises(ValueError, match=r"26-7-0009.flac: can't be read"):
        opened(root)
    (folder / "sketchy-lengths.json").write_text("{")
    with pytest.raises(ValueError, match=r"sketchy-lengths.json: .*remove it to make it again"):
        opened(root)


Break = Callable[[Path], object]
BROKEN: dict[str, tuple[Break, str]] = {
    "nothing there": (lambda r: shutil.rmtree(r), r"librispeech is not in .*\n.*train-clean-100"),
    "no test": (lambda r: shutil.rmtree(r / "test-clean"), r"test-clean: no such folder(.*\n)*.*openslr"),
    "no transcripts": (
        lambda r: [path.unlink() for path in r.glob("dev-clean/*/*/*.txt")],
        "dev-clean: has no SPEAKER",
    ),
    "no recording": (lambda r: (r / FLAC).unlink(), r"26-7-0001.flac: no such file; .* line 2"),
    "no text": (lambda r: (r / TEXT).write_text("26-7-0000 \n"), r"trans.txt, line 1: must be"),
    "an unknown letter": (
        lambda r: (r / TEXT).write_text("26-7-0000 ΩΩΩ\n"),
        r"26-7-0000.flac: its text has a character",
    ),
    "an empty file": (lambda r: (r / FLAC).write_bytes(b""), r"0001.flac: can't be read"),
    "a recording of nothing": (lambda r: write(r, 0), r"0001.flac: can't be read"),
    "a short recording": (lambda r: write(r, 400), r"0001.flac: has 400 samples, too few"),
    "another rate": (
        lambda r: write(r, 9000, rate=8000),
        r"0001.flac: has . channels and .*; must be one and 16,000",
    ),
    "two channels": (
        lambda r: write(r, 9000, channels=2),
        r"0001.flac: has . channels and .*; must be one and 16,000",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_wrong_layout_or_recording_is_named_before_the_first_step(case: str, root: Path) -> None:
    change, message = BROKEN[case]
    change(root / "LibriSpeech")
    with pytest.raises(ValueError, match=message):
        opened(root)


def test_a_truncated_recording_is_named_when_it_is_read(root: Path) -> None:
    data, path = opened(root), root / "LibriSpeech/test-clean/19/7/19-7-0001.flac"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ValueError, match=r"19-7-0001.flac: "):
        data.test.batch([0, 1], None)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"19-7-0001.flac: can't be read as a recording"):
        data.test.batch([0, 1], None)


@pytest.mark.parametrize("package", ["soundfile", "sentencepiece"])
def test_a_missing_package_is_named_with_its_extra(
    package: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=rf"{package} is missing; pip install '.\[speech\]'"):
        opened(root)
