"""The recordings of the Free Spoken Digit Dataset: six speakers say each digit fifty times."""

import io
import wave
from pathlib import Path
from typing import IO

import numpy as np

from sketchy.experiments import published
from sketchy.experiments.published import File, Form, Known, Read

RATE = 8000
TAKES = 50  # of each digit by each speaker
Clip = tuple[np.ndarray, int]  # 16-bit samples, and the digit
Speakers = dict[str, dict[int, list[Clip]]]  # by name and take
_CLONE = Path("free-spoken-digit-dataset/recordings")


def speakers(directory: Path) -> Speakers:
    """From a clone of the data set in the data directory, or from our packed file."""
    if (directory / _CLONE).is_dir():
        return _cloned(directory / _CLONE)
    found, _ = published.read("fsdd", directory, among=_KNOWN)
    return dict(found)


def _cloned(folder: Path) -> Speakers:
    """From files DIGIT_SPEAKER_TAKE.wav."""
    found: Speakers = {}
    for path in sorted(folder.glob("*.wav")):
        digit, _, rest = path.stem.partition("_")
        name, _, take = rest.rpartition("_")
        if not (digit in set("0123456789") and name and take.isdecimal() and int(take) < TAKES):
            raise ValueError(f"{path}: must be named DIGIT_SPEAKER_TAKE.wav, with takes 0 to {TAKES - 1}")
        found.setdefault(name, {}).setdefault(int(take), []).append((_samples(path), int(digit)))
    for name, takes in found.items():
        if (count := sum(map(len, takes.values()))) != 10 * TAKES:
            raise ValueError(f"{folder}: has {count} recordings of {name}; must be {10 * TAKES}")
    return found


def _samples(path: Path) -> np.ndarray:
    try:
        with wave.open(str(path)) as file:
            kind = file.getnchannels(), file.getsampwidth(), file.getframerate()
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    except (wave.Error, EOFError, ValueError) as error:
        raise ValueError(f"{path}: can't be read as a recording: {error}") from error
    if kind != (1, 2, RATE) or not len(samples):
        raise ValueError(f"{path}: must have one channel of 16 bits and {RATE:,} samples a second")
    return samples


def _packed(index: IO[bytes], samples: IO[bytes]) -> Read:
    """From one array of all samples and an index of its parts; also all digits."""
    lines = [line.split(",") for line in index.read().decode().splitlines()]
    rows = [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]
    everything = np.load(io.BytesIO(samples.read()))
    found: Speakers = {}
    for row in rows:
        clip = everything[int(row["offset"]) :][: int(row["length"])]
        takes = found.setdefault(row["speaker"], {})
        takes.setdefault(int(row["take"]), []).append((clip, int(row["digit"])))
    return found, np.array([int(row["digit"]) for row in rows])


_PAGE = "https://github.com/Jakobovski/free-spoken-digit-dataset"
_INDEX = File("speech/fsdd_index.csv", "aa989169c1dbbd3879cc832b823aa507dd83ce5e46d8f189e96fe35b0989bce7")
_SAMPLES = File(
    "speech/fsdd_audio_8khz_int16.npy", "c7c6a2b8fbab2813f440f073128c99dd8a0512733ab75baaa2c3ed0f6ae7cebe"
)
_KNOWN = {
    "fsdd": Known(
        _PAGE,
        (Form((_INDEX, _SAMPLES), _packed),),
        (f"these are packed; simpler: in the data directory, git clone {_PAGE}",),
    )
}
