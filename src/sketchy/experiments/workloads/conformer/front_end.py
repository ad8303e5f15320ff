"""Recordings to log-mel features (25 ms windows, every 10 ms), and SpecAugment's masks on them."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sketchy.experiments.workloads.workload import Batch

_EMPHASIS, _FLOOR = 0.97, 1e-5
_EDGES = {16_000: (125.0, 7600.0), 8_000: (60.0, 3800.0)}  # Hz, by samples a second
_OTHER = (-0.6, 1.4)  # mean and deviation of a feature: of spoken digits under noise, all bins
# and of each of LibriSpeech's 80 bins: the numbers of init2winit's workload
_LIBRISPEECH = (
    "-7.605 -7.121 -6.886 -6.871 -6.967 -7.108 -6.953 -6.784 -6.620 -6.488 -6.412 -6.394 -6.424 -6.399"
    " -6.516 -6.714 -6.848 -6.989 -6.922 -7.146 -7.204 -7.054 -7.314 -7.122 -7.303 -7.121 -7.243 -7.173"
    " -7.098 -7.089 -6.985 -6.879 -6.760 -6.630 -6.515 -6.425 -6.357 -6.318 -6.266 -6.247 -6.282 -6.191"
    " -6.248 -6.147 -6.092 -6.017 -5.925 -5.854 -5.821 -5.812 -5.808 -5.771 -5.745 -5.771 -5.777 -5.783"
    " -5.795 -5.799 -5.802 -5.805 -5.817 -5.884 -5.973 -6.044 -6.128 -6.226 -6.316 -6.391 -6.493 -6.550"
    " -6.605 -6.651 -6.669 -6.673 -6.684 -6.697 -6.755 -6.795 -6.863 -6.942",
    "3.435 3.596 3.701 3.737 3.754 3.694 3.692 3.764 3.842 3.900 3.929 3.932 3.914 3.903 3.869 3.816"
    " 3.764 3.710 3.697 3.600 3.549 3.547 3.450 3.471 3.408 3.441 3.410 3.422 3.431 3.420 3.431 3.438"
    " 3.458 3.482 3.496 3.504 3.505 3.499 3.493 3.482 3.459 3.461 3.456 3.476 3.497 3.533 3.571 3.592"
    " 3.597 3.591 3.587 3.583 3.584 3.590 3.582 3.584 3.586 3.589 3.592 3.594 3.586 3.588 3.592 3.587"
    " 3.581 3.573 3.562 3.550 3.553 3.548 3.539 3.526 3.503 3.492 3.488 3.473 3.456 3.435 3.428 3.430",
)


@dataclass(frozen=True)
class Masks:
    """SpecAugment: how many masks, and the largest of them."""

    bands: int = 2
    most_bins: int = 27
    gaps: int = 10
    most_time: float = 0.05  # of an utterance

    @property
    def numbers(self) -> int:
        """How many random numbers in [0, 1) an utterance needs: a size and a place for each mask."""
        return 2 * (self.bands + self.gaps)


class LogMel(nn.Module):
    """Features (rows, frames, bins) of a batch, zero where an utterance has ended, and its numbers of frames.

    A batch has ``samples`` (rows, samples), 16-bit numbers, ``sample_counts`` (rows,), and for training
    ``masks`` (rows, `Masks.numbers`). A frame is a window that lies in the recording as a whole.
    """

    window: Tensor
    mel: Tensor
    mean: Tensor
    deviation: Tensor

    def __init__(self, rate: int, bins: int, masks: Masks) -> None:
        super().__init__()
        self.bins, self.masks = bins, masks
        self.size, self.hop = rate // 40, rate // 100
        self.points = 2 ** math.ceil(math.log2(self.size))  # of the Fourier transform
        published = (rate, bins) == (16_000, 80)
        mean, deviation = (
            (torch.tensor([float(x) for x in part.split()]) for part in _LIBRISPEECH)
            if published
            else (torch.full((bins,), x) for x in _OTHER)
        )
        constants = {
            "window": torch.hann_window(self.size),
            "mel": mel_matrix(bins, self.points // 2 + 1, rate, *_EDGES[rate]),
            "mean": mean,
            "deviation": deviation,
        }
        for name, value in constants.items():
            self.register_buffer(name, value, persistent=False)

    def frames(self, samples: Tensor) -> Tensor:
        """The number of frames of a recording."""
        return ((samples - self.size - 1) // self.hop + 1).clamp(min=0)

    @torch.no_grad()
    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        lengths = self.frames(batch["sample_counts"])
        with torch.autocast(batch["samples"].device.type, enabled=False):
            features = self.features(batch["samples"])
        exists = torch.arange(features.shape[1], device=lengths.device) < lengths.unsqueeze(1)
        keep = exists.unsqueeze(2)
        if "masks" in batch:
            keep = keep & ~masked(batch["masks"], lengths, features.shape[1], self.bins, self.masks)
        return features * keep, lengths

    def features(self, samples: Tensor) -> Tensor:
        """All frames of recordings. Each frame is pre-emphasised by itself, with HTK's first sample."""
        dtype = self.window.dtype
        framed = (samples.to(dtype) / 32_768).unfold(1, self.size + 1, self.hop)
        framed = framed[..., : self.size]  # the last sample is only needed in the other flavour
        before = torch.cat([framed[..., :1], framed[..., :-1]], -1)
        spectrum = torch.fft.rfft((framed - _EMPHASIS * before) * self.window, self.points).abs()
        return ((spectrum @ self.mel).clamp(min=_FLOOR).log() - self.mean) / self.deviation


def mel_matrix(bins: int, frequencies: int, rate: int, low: float, high: float) -> Tensor:
    """HTK's triangles in mel, (frequencies, bins), without 0 Hz. Each ends at its neighbours' centres."""
    at = _mel(torch.linspace(0, rate / 2, frequencies, dtype=torch.float64)).unsqueeze(1)
    edges = torch.linspace(_mel_of(low), _mel_of(high), bins + 2, dtype=torch.float64)
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (at - left) / (centre - left), (right - at) / (right - centre)
    found = torch.minimum(rising, falling).clamp(min=0)
    found[0] = 0
    return found.float()


def _mel(hertz: Tensor) -> Tensor:
    return 1127 * (1 + hertz / 700).log()


def _mel_of(hertz: float) -> float:
    return 1127 * math.log(1 + hertz / 700)


def masked(numbers: Tensor, lengths: Tensor, frames: int, bins: int, masks: Masks) -> Tensor:
    """(rows, frames, bins): which features SpecAugment hides, from random numbers in [0, 1).

    ``numbers``: sizes, then places (`Masks.numbers`). A band has 0 to ``most_bins`` bins, and a gap 0 to
    ``most_time`` of the frames: whole numbers, all equally likely, and so are their places.
    """
    sizes, places = numbers.unflatten(1, (2, -1)).unbind(1)
    whole = lengths.unsqueeze(1)
    cut = masks.bands
    bands = _covered(sizes[:, :cut], places[:, :cut], torch.full_like(whole, bins), masks.most_bins, bins)
    most = (masks.most_time * whole).floor()
    gaps = _covered(sizes[:, cut:], places[:, cut:], whole, most, frames)
    return bands.unsqueeze(1) | gaps.unsqueeze(2)


def _covered(sizes: Tensor, places: Tensor, whole: Tensor, most: Tensor | int, line: int) -> Tensor:
    """(rows, line): what masks cover of the first ``whole`` entries; no mask is longer than ``most``."""
    length = (sizes * (most + 1)).floor()
    start = (places * (whole - length + 1)).floor().unsqueeze(2)
    at = torch.arange(line, device=sizes.device)
    return ((at >= start) & (at < start + length.unsqueeze(2))).any(1)
