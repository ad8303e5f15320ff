"""Log-mel features beside a direct Fourier transform, and SpecAugment's masks beside loops."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from checks import assert_close
from sketchy.experiments.workloads.conformer.front_end import LogMel, Masks, masked, mel_matrix


def mel(hertz: float) -> float:
    return 1127 * math.log(1 + hertz / 700)


def triangle(frequency: float, left: float, centre: float, right: float) -> float:
    at, left, centre, right = map(mel, (frequency, left, centre, right))
    return max(0.0, min((at - left) / (centre - left), (right - at) / (right - centre)))


def hertz(m: float) -> float:
    return 700 * (math.exp(m / 1127) - 1)


def edges(bins: int, low: float, high: float) -> list[float]:
    step = (mel(high) - mel(low)) / (bins + 1)
    return [hertz(mel(low) + i * step) for i in range(bins + 2)]


@pytest.mark.parametrize(("rate", "bins", "low", "high"), [(16_000, 80, 125, 7600), (8_000, 40, 60, 3800)])
def test_features_are_logs_of_mel_sums_of_magnitudes_of_a_direct_transform(
    rate: int, bins: int, low: float, high: float
) -> None:
    size, hop = rate // 40, rate // 100
    samples = (8000 * torch.randn(1, size + 1 + 2 * hop, generator=torch.Generator().manual_seed(0))).short()
    front = LogMel(rate, bins, Masks()).double()
    found = front.features(samples)[0] * front.deviation + front.mean
    assert found.shape == (3, bins)
    points = 512 if rate == 16_000 else 256
    around = edges(bins, low, high)
    x = samples[0].double() / 32_768
    n = torch.arange(size, dtype=torch.float64)
    hann = 0.5 - 0.5 * torch.cos(2 * math.pi * n / size)
    for frame in range(3):
        window = x[frame * hop :][:size]
        emphasised = torch.cat([0.03 * window[:1], window[1:] - 0.97 * window[:-1]]) * hann
        angles = 2 * math.pi * torch.outer(torch.arange(points // 2 + 1).double(), n) / points
        real, imaginary = angles.cos() @ emphasised, angles.sin() @ emphasised
        magnitude = (real.square() + imaginary.square()).sqrt()
        for i in (0, 1, bins // 2, bins - 1):
            weights = [triangle(k * rate / points, *around[i : i + 3]) for k in range(1, points // 2 + 1)]
            total = float(torch.tensor(weights, dtype=torch.float64) @ magnitude[1:])
            assert float(found[frame, i]) == pytest.approx(math.log(max(total, 1e-5)), abs=1e-5)


def test_a_feature_of_silence_is_the_log_of_the_floor() -> None:
    front = LogMel(8000, 16, Masks())
    found = front.features(torch.zeros(1, 400, dtype=torch.int16)) * front.deviation + front.mean
    assert_close(found, torch.full_like(found, math.log(1e-5)), scale=1, tolerance=1e-4)


def test_librispeech_has_a_mean_and_a_deviation_for_each_bin() -> None:
    front = LogMel(16_000, 80, Masks())
    assert len(front.mean) == len(front.deviation) == 80
    assert (front.mean[0].item(), front.mean[-1].item()) == pytest.approx((-7.605, -6.942))
    assert (front.deviation.min().item(), front.deviation.max().item()) == pytest.approx((3.408, 3.932))


def test_triangles_end_at_the_centres_of_their_neighbours() -> None:
    """Between the first and the last centre, the triangles add up to one."""
    weights, around = mel_matrix(20, 513, 16_000, 125.0, 7600.0), edges(20, 125, 7600)
    at = torch.linspace(0, 8000, 513)
    inner = (at >= around[1]) & (at <= around[-2])
    assert_close(weights[inner].sum(1), torch.ones(int(inner.sum())), scale=1, tolerance=1e-5)
    assert not weights[(at <= 125) | (at >= 7600)].any()


def test_frames_beyond_the_end_are_zero_and_whole_windows_count() -> None:
    front = LogMel(8000, 16, Masks())
    counts = torch.tensor([201, 280, 281, 1000])
    samples = torch.randint(-9999, 9999, (4, 1000), dtype=torch.int16)
    features, lengths = front({"samples": samples, "sample_counts": counts})
    assert lengths.tolist() == [1, 1, 2, 10] and features.shape == (4, 10, 16)
    for row, length in enumerate(lengths):
        assert features[row, :length].ne(0).all() and not features[row, length:].any()


@given(
    st.integers(0, 10**6),
    st.lists(st.integers(1, 60), min_size=1, max_size=4),
    st.integers(1, 3),
    st.integers(1, 4),
)
def test_masks_are_bands_and_gaps_at_random_places(
    seed: int, lengths: list[int], bands: int, gaps: int
) -> None:
    bins, masks = 12, Masks(bands, 5, gaps, 0.25)
    numbers = torch.rand(len(lengths), masks.numbers, generator=torch.Generator().manual_seed(seed))
    found = masked(numbers, torch.tensor(lengths), max(lengths), bins, masks)
    for row, length in enumerate(lengths):
        assert torch.equal(found[row], by_loops(numbers[row].tolist(), length, max(lengths), bins, masks))


def by_loops(numbers: list[float], length: int, frames: int, bins: int, masks: Masks) -> Tensor:
    found = torch.zeros(frames, bins, dtype=torch.bool)
    count = masks.bands + masks.gaps
    for i, (size, place) in enumerate(zip(numbers[:count], numbers[count:], strict=True)):
        band = i < masks.bands
        line, most = (bins, masks.most_bins) if band else (length, int(masks.most_time * length))
        width = int(torch.tensor(size) * (most + 1))
        start = int(torch.tensor(place) * (line - width + 1))
        assert width <= most and start + width <= line
        if band:
            found[:, start : start + width] = True
        else:
            found[start : start + width] = True
    return found


def test_every_size_and_place_of_a_mask_is_drawn() -> None:
    masks = Masks(1, 2, 0, 0.0)
    numbers = torch.rand(500, masks.numbers, generator=torch.Generator().manual_seed(0))
    found = masked(numbers, torch.full((500,), 1), 1, 3, masks)[:, 0]
    kinds = {"".join(str(int(x)) for x in row) for row in found}
    assert kinds == {"000", "100", "010", "001", "110", "011"}


def test_a_hidden_feature_is_zero() -> None:
    front = LogMel(8000, 16, Masks(1, 16, 0, 0.0))
    samples, counts = torch.randint(-9999, 9999, (1, 1000), dtype=torch.int16), torch.tensor([1000])
    batch = {"samples": samples, "sample_counts": counts}
    plain, _ = front(batch)
    found, _ = front(batch | {"masks": torch.tensor([[0.5, 0.0]])})  # 8 of 0 to 16 bins, from the first one
    assert not found[..., :8].any() and torch.equal(found[..., 8:], plain[..., 8:])
