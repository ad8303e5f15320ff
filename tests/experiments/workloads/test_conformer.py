"""The Conformer: weight counts, its pieces beside plain computations, padding that never counts, its loss."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from checks import assert_close
from experiments.workloads.places import draw
from sketchy.experiments.workloads.conformer import Conformer
from sketchy.experiments.workloads.conformer.network import (
    Attention,
    Convolution,
    MaskedBatchNorm,
    Norm,
    Subsampling,
    positions,
)
from sketchy.experiments.workloads.conformer.workload import ConformerScale

WORKLOAD = Conformer()
TINY: ConformerScale = WORKLOAD.presets["tiny"].scale
SOURCE = WORKLOAD.sources["synthetic"]
EXACT = 1e-12


def randomized(module: nn.Module) -> nn.Module:
    """In float64, with weights that are all random."""
    generator = torch.Generator().manual_seed(0)
    for p in module.double().parameters():
        p.data.copy_(0.5 * torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return module


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def existing(*lengths: int) -> Tensor:
    return (torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)).unsqueeze(2)


@pytest.mark.parametrize(("layers", "expected"), [(16, 104_883_200), (4, 32_321_792)])
def test_the_published_sizes_have_the_published_numbers_of_weights(layers: int, expected: int) -> None:
    scale = WORKLOAD.presets["paper"].scale.changed({"layers": layers})
    with torch.device("meta"):
        network = WORKLOAD.network(scale, WORKLOAD.sources["librispeech"].sizes)
    assert sum(p.numel() for p in network.parameters()) == expected


# -- norms --------------------------------------------------------------------------------------------


def test_a_norm_multiplies_by_one_plus_its_scale() -> None:
    norm, x = randomized(Norm(6)), normal(2, 3, 6)
    expected = functional.layer_norm(x, (6,), None, None, 1e-6) * (1 + norm.scale) + norm.bias
    assert_close(norm(x), expected, scale=1, tolerance=EXACT)
    assert torch.equal(Norm(6).double()(x), functional.layer_norm(x, (6,), eps=1e-6))


def test_a_masked_norm_is_the_batch_norm_of_the_rows_without_padding() -> None:
    norm: Any = randomized(MaskedBatchNorm(5, keep=0.9, batch=3))
    x, exists = 2 + normal(3, 7, 5), existing(7, 2, 4)
    weight, mean, variance = 1 + norm.scale, torch.zeros(5).double(), torch.ones(5).double()
    rows = x[exists.squeeze(2)]
    expected = functional.batch_norm(rows, mean, variance, weight, norm.bias, True, 0.1, 1e-3)
    found = norm(x, exists)[exists.squeeze(2)]
    assert_close(found, expected, scale=1, tolerance=EXACT)
    assert_close(norm.running_mean, mean, scale=1, tolerance=EXACT)
    biased = 0.9 + 0.1 * rows.var(0, correction=0)  # torch's would be the unbiased one
    assert_close(norm.running_var, biased, scale=1, tolerance=EXACT)
    norm.eval()
    later = functional.batch_norm(rows, norm.running_mean, norm.running_var, weight, norm.bias, eps=1e-3)
    assert_close(norm(x, exists)[exists.squeeze(2)], later, scale=1, tolerance=EXACT)


def test_averages_age_by_rows_not_by_passes() -> None:
    norms = [MaskedBatchNorm(2, keep=0.9, batch=4).double() for _ in range(2)]
    x = torch.zeros(4, 3, 2, dtype=torch.float64)
    norms[0](x, existing(3, 3, 3, 3))
    for _ in range(2):
        norms[1](x[:2], existing(3, 3))
    for norm in norms:
        assert_close(norm.running_var, torch.full((2,), 0.9), scale=1, tolerance=1e-7)


# -- pieces -------------------------------------------------------------------------------------------


def test_attention_is_softmax_of_scaled_queries_over_the_frames_that_exist() -> None:
    attention: Any = randomized(Attention(6, 2, 0.0))
    x, lengths = normal(2, 5, 6), (5, 3)
    found = attention(x, existing(*lengths))
    for row, length in enumerate(lengths):
        y = attention.norm(x[row])
        heads = []
        for head in (slice(0, 3), slice(3, 6)):
            q, k, v = (linear(y)[:, head] for linear in (attention.query, attention.key, attention.value))
            q = q * 1.442695041 * functional.softplus(attention.scale)
            heads.append((q @ k[:length].T / math.sqrt(3)).softmax(1) @ v[:length])
        assert_close(found[row], attention.out(torch.cat(heads, 1)), scale=1, tolerance=1e-8)


def test_the_convolution_block_sees_zeros_beyond_the_end() -> None:
    block: Any = randomized(Convolution(4, 5, keep=0.9, batch=1)).eval()
    x = normal(1, 6, 4)
    y = block.norm(x[0, :4])
    y = functional.pad(block.value(y) * block.gate(y).sigmoid(), (0, 0, 2, 2))
    filtered = torch.stack([(y[i : i + 5] * block.depthwise.weight[:, 0].T).sum(0) for i in range(4)])
    inner = block.batch_norm
    scaled = filtered / math.sqrt(1 + 1e-3) * (1 + inner.scale) + inner.bias
    assert_close(
        block(x, existing(4, 6)[:1])[0, :4], block.out(functional.silu(scaled)), scale=1, tolerance=EXACT
    )


@pytest.mark.parametrize("frames", [1, 6, 7, 9])
def test_subsampling_is_two_convolutions_whose_windows_begin_at_even_places(frames: int) -> None:
    module: Any = randomized(Subsampling(8, 3, 4))
    x = normal(1, frames, 8)
    y = x.unsqueeze(1)
    for conv in (module.first, module.second):
        long = functional.pad(y, (0, 8, 0, 8))  # more zeros than needed; the windows beyond are cut off
        count = [(side + 1) // 2 for side in y.shape[2:]]
        y = functional.conv2d(long, conv.weight, conv.bias, 2).relu()[:, :, : count[0], : count[1]]
    found, lengths = module(x, torch.tensor([frames]))
    assert lengths.tolist() == [math.ceil(frames / 4)]
    assert_close(found, module.linear(y.transpose(1, 2).flatten(2)), scale=1, tolerance=EXACT)


def test_positions_are_sines_and_cosines_of_ten_thousand_wave_lengths() -> None:
    found = positions(50, 6)
    for frame in (0, 1, 49):
        rates = [1.0, 10_000**-0.5, 10_000**-1.0]
        expected = [f(frame * rate) for f in (math.sin, math.cos) for rate in rates]
        assert found[frame].tolist() == pytest.approx(expected, abs=1e-5)


def network(**changes: Any) -> tuple[nn.Module, ConformerScale]:
    scale = TINY.changed(changes)
    torch.manual_seed(0)
    return WORKLOAD.network(scale, SOURCE.sizes), scale


def test_a_padded_utterance_has_the_outputs_that_it_has_alone() -> None:
    found, scale = network(layers=2)
    found.double().eval()
    batch = SOURCE.open(Path(), scale).train.batch(range(6), draw)
    counts = batch["sample_counts"]
    assert len(set(counts.tolist())) > 3, "lengths differ"
    logits, lengths = found(batch)
    for row in range(6):
        alone = {name: x[row : row + 1] for name, x in batch.items()}
        own, (length,) = found(alone | {"samples": alone["samples"][:, : counts[row]]})
        assert int(length) == int(lengths[row]) == own.shape[1]
        assert_close(logits[row, :length], own[0], scale=1, tolerance=1e-9)


def test_sums_of_losses_add_up_over_micro_batches() -> None:
    found, scale = network()
    found.double().eval()
    split = SOURCE.open(Path(), scale).validation
    whole = WORKLOAD.loss(found, split.batch(range(8), None), scale)
    parts = [WORKLOAD.loss(found, split.batch(rows, None), scale) for rows in (range(3), range(3, 8))]
    assert float(whole[0].detach()) == pytest.approx(sum(float(loss.detach()) for loss, _ in parts), rel=1e-6)
    assert int(whole[1]) == sum(int(count) for _, count in parts)
    looks = [WORKLOAD.look(found, split.batch(rows, None), scale) for rows in (range(3), range(3, 8))]
    score = WORKLOAD.score(looks, scale)
    assert score.loss == pytest.approx(float(whole[0].detach() / whole[1]), rel=1e-6)


def test_the_loss_falls_and_words_are_right_on_one_repeated_batch() -> None:
    found, scale = network(dropout=0, input_dropout=0)
    batch = SOURCE.open(Path(), scale).validation.batch(range(4), None)
    optimizer, losses = torch.optim.AdamW(found.parameters(), 2e-2, betas=(0.9, 0.95)), []
    for _ in range(60):
        loss, count = WORKLOAD.loss(found, batch, scale)
        optimizer.zero_grad()
        (loss / count).backward()
        optimizer.step()
        losses.append(float(loss.detach() / count))
    assert losses[-1] < 0.05 * losses[0]
    found.eval()
    assert WORKLOAD.score([WORKLOAD.look(found, batch, scale)], scale).metric < 0.2


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("heads", "3", "heads=3: must divide the width"),
        ("most_bins", "99", "most_bins=99: there are 16 bins"),
    ],
)
def test_a_wrong_setting_is_refused(setting: str, value: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TINY.changed({setting: value})
