"""Strings of spoken digits under noise, from the Free Spoken Digit Dataset; and strings of tones.

Strings are made when a batch needs them: a speaker, 2 to 4 of the speaker's clips with a silence before each,
and white noise. In validation and test each string is fixed, and its speaker is not in training.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from sketchy.experiments.workloads.conformer.recordings import Recording, Recordings
from sketchy.experiments.workloads.conformer.takes import RATE, TAKES, Clip, speakers
from sketchy.experiments.workloads.order import generator
from sketchy.experiments.workloads.workload import Data

CLIPS = (2, 4)  # in a string
SILENCE = (0.025, 0.15)  # seconds before a clip
LEVEL = (
    2000.0  # root mean square of a string before noise; recordings of some speakers are eight times louder
)
EPOCH, HELD_OUT = 1000, 500  # strings
OTHERS = ("theo", "yweweler")  # speakers to validate and test; the other four are for training


class Strings(Recordings):
    """A split of random strings of clips; piece 1 + d is the digit d.

    ``clips``: of each speaker, pairs of samples and digit. ``noise``: how far it is below a string, in dB.
    """

    def __init__(
        self, clips: Sequence[Sequence[Clip]], size: int, *, noise: float, seed: int, numbers: int
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
    found = speakers(directory)
    if absent := [name for name in OTHERS if name not in found]:
        raise ValueError(f"{directory}: the digits have no speaker {absent[0]!r}, who is held out")
    own = [name for name in found if name not in OTHERS]
    half = TAKES // 2
    parts = (
        (own, range(TAKES), EPOCH),
        (OTHERS, range(half), HELD_OUT),
        (OTHERS, range(half, TAKES), HELD_OUT),
    )
    train, validation, held_out = (
        Strings(
            [[clip for take in takes for clip in found[name][take]] for name in names],
            size,
            noise=noise,
            seed=seed,
            numbers=numbers,
        )
        for seed, (names, takes, size) in enumerate(parts)
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
