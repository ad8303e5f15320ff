"""Chapters of LibriSpeech: FLAC files of utterances, and a transcript with a line for each of them."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sketchy import files
from sketchy.extras import missing

RATE = 16_000
LAYOUT = """\
  train-clean-100, train-clean-360, train-other-500, dev-clean, dev-other and test-clean, each with
  SPEAKER/CHAPTER/*.flac and SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt (https://www.openslr.org/12)"""
_SHORTEST = 401  # samples: one frame
_LENGTHS = "sketchy-lengths.json"


@dataclass(frozen=True)
class Utterance:
    path: Path
    text: str  # lower case
    samples: int

    def read(self) -> np.ndarray:
        """Its samples, 16-bit numbers."""
        with _readable(self.path):
            samples, rate = _package().read(self.path, dtype="int16", always_2d=True)
        _check(self.path, rate, *samples.shape)
        return samples[:, 0]


def utterances(folder: Path) -> list[Utterance]:
    """All utterances of a folder, by name. Their lengths are kept in a file: to open all takes minutes."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder. LibriSpeech should have\n{LAYOUT}")
    transcripts = sorted(folder.glob("*/*/*.trans.txt"))
    if not transcripts:
        raise ValueError(f"{folder}: has no SPEAKER/CHAPTER/*.trans.txt")
    known = _known(folder / _LENGTHS)
    found = [each for transcript in transcripts for each in _chapter(transcript, known)]
    if {each.path.name for each in found} - known.keys():
        with suppress(OSError):  # where nothing can be written, all are opened again next time
            files.write(folder / _LENGTHS, json.dumps({each.path.name: each.samples for each in found}))
    return found


def _known(place: Path) -> Mapping[str, int]:
    try:
        return dict(json.loads(place.read_text())) if place.is_file() else {}
    except (ValueError, TypeError) as error:
        raise ValueError(f"{place}: {error}; remove it to make it again") from error


def _chapter(transcript: Path, known: Mapping[str, int]) -> Iterator[Utterance]:
    for number, line in enumerate(transcript.read_text(encoding="utf-8").splitlines(), 1):
        name, _, text = line.partition(" ")
        path = transcript.parent / f"{name}.flac"
        if not text.strip():
            raise ValueError(f"{transcript}, line {number}: must be the name of a recording and its text")
        if not path.is_file():
            raise ValueError(f"{path}: no such file; {transcript.name} names it in line {number}")
        yield Utterance(path, text.strip().lower(), known.get(path.name) or _length(path))


def _length(path: Path) -> int:
    """The number of samples, from the beginning of the file."""
    with _readable(path):
        about = _package().info(path)
    _check(path, about.samplerate, about.frames, about.channels)
    return int(about.frames)


def _check(path: Path, rate: int, samples: int, channels: int) -> None:
    if rate != RATE or channels != 1:
        raise ValueError(
            f"{path}: has {channels} channels and {rate:,} samples a second; must be one and {RATE:,}"
        )
    if samples < _SHORTEST:
        raise ValueError(f"{path}: has {samples} samples, too few for one frame ({_SHORTEST})")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Errors inside name the recording."""
    try:
        yield
    except (RuntimeError, OSError) as error:  # soundfile's
        raise ValueError(f"{path}: can't be read as a recording: {error}") from error


def _package() -> Any:
    try:
        import soundfile
    except ImportError as error:
        raise ValueError(missing("soundfile", "speech")) from error
    return soundfile
