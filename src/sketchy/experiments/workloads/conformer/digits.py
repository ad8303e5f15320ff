"""Strings of spoken digits under noise, from the Free Spoken Digit Dataset; and strings of tones.

Strings are made when a batch needs them: a speaker, 2 to 4 of the speaker's clips with a silence before each,
and white noise. In validation and test each string is fixed, and its speaker is not in training.
"""

import io
from pathlib import Path
from typing import IO

import numpy as np
import torch

from sketchy.experiments import published
from sketchy.experiments.published import File, Form, Known, Read
from sketchy.experiments.workloads.conformer.recordings import Recording, Recordings
from sketchy.experiments.workloads.order import generator
from sketchy.experiments.workloads.workload import Data

RATE = 8000
CLIPS = (2, 4)  # in a string
SILENCE = (0.025, 0.15)  # seconds before a clip
LEVEL = 2000.0  # root mean square of a string before noise; recordings of some speakers are ten times louder
EPOCH, HELD_OUT = 1000, 500  # strings
OTHERS = ("theo", "yweweler")  # speakers to validate and test; the other four are for training
TAKES = 50  # of each digit by each speaker; the first half of the others' is to validate


class Strings(Recordings):
    """A split of random strings of clips; piece 1 + d is the digit d.

    ``clips``: of each speaker, pairs of samples and digit. ``noise``: how far it is below a string, in dB.
    """

    def __init__(
        self, clips: "list[list[tuple[np.ndarray, int]]]", size: int, *, noise: float, seed: int, numbers: int
    ) -> None:
        super().__init__(["", *(f" {digit}" for digit in range(10))], numbers)
        self.clips, self.size, self.noise, self.seed = clips, size, noise, seed

    def __len__(self) -> int:
        return self.size

    def recording(self, row: int, draw: torch.Generator | None) -> Recording:
        draw = generator(self.seed, row) if draw is None else draw
        clips = self.clips[int(torch.randint(len(self.clips), (), generator=draw))]
        count = int(torch.randint(CLIPS[0], CLIPS[1] + 1, (), generator=draw))
        parts, digits = [], []
        for i in torch.randint(len(clips), (count,), generator=draw).tolist():
            silence = SILENCE[0] + float(torch.rand((), generator=draw)) * (SILENCE[1] - SILENCE[0])
            parts += [np.zeros(round(silence * RATE)), clips[i][0]]
            digits.append(1 + clips[i][1])
        string = np.concatenate(parts, dtype=np.float64)
        string *= LEVEL / np.sqrt(np.mean(np.square(string)))
        noise = torch.randn(len(string), generator=draw, dtype=torch.float64).numpy()
        string += LEVEL * 10 ** (-self.noise / 20) * noise
        return string.round().clip(-32_768, 32_767).astype(np.int16), digits


def open_digits(directory: Path, *, noise: float, numbers: int) -> Data:
    """Four speakers to train. Of two others, half of the takes to validate, and half to test."""
    speakers, _ = published.read("fsdd", directory, among=_KNOWN)
    own = [name for name in speakers if name not in OTHERS]
    first, second = range(TAKES // 2), range(TAKES // 2, TAKES)
    train, validation, held_out = (
        Strings(
            [[clip for take in takes for clip in speakers[name][take]] for name in names],
            size,
            noise=noise,
            seed=seed,
            numbers=numbers,
        )
        for seed, (names, takes, size) in enumerate(
            ((own, range(TAKES), EPOCH), (OTHERS, first, HELD_OUT), (OTHERS, second, HELD_OUT))
        )
    )
    about = f"two speakers of six held out, half of their takes to validate; {noise:g} dB above white noise"
    return Data(train, validation, held_out, about)


def open_tones(*, numbers: int) -> Data:
    """Random strings of four tones, which stand for the digits 0 to 3."""
    time = np.arange(1600) / RATE
    clips = [
        ((8000 * np.sin(2 * np.pi * 400 * 2**digit * time)).astype(np.int16), digit) for digit in range(4)
    ]
    train, validation, held_out = (
        Strings([clips], size, noise=20.0, seed=seed, numbers=numbers)
        for seed, size in enumerate((64, 16, 16))
    )
    return Data(train, validation, held_out, "strings of tones")


def _speakers(index: IO[bytes], samples: IO[bytes]) -> Read:
    """The clips of each speaker, {name: {take: [(samples, digit), ...]}}, and all digits."""
    lines = [line.split(",") for line in index.read().decode().splitlines()]
    rows = [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]
    everything = np.load(io.BytesIO(samples.read()))
    found: dict[str, dict[int, list[tuple[np.ndarray, int]]]] = {}
    for row in rows:
        clip = everything[int(row["offset"]) :][: int(row["length"])]
        takes = found.setdefault(row["speaker"], {})
        takes.setdefault(int(row["take"]), []).append((clip, int(row["digit"])))
    return found, np.array([int(row["digit"]) for row in rows])


_INDEX = File("speech/fsdd_index.csv", "aa989169c1dbbd3879cc832b823aa507dd83ce5e46d8f189e96fe35b0989bce7")
_SAMPLES = File(
    "speech/fsdd_audio_8khz_int16.npy", "c7c6a2b8fbab2813f440f073128c99dd8a0512733ab75baaa2c3ed0f6ae7cebe"
)
_KNOWN = {
    "fsdd": Known(
        "https://github.com/Jakobovski/free-spoken-digit-dataset; here all recordings are one array, with an"
        " index (offset, length, digit, speaker, take, split)",
        (Form((_INDEX, _SAMPLES), _speakers),),
    )
}
