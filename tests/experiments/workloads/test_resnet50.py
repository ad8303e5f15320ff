"""ResNet-50: weight counts, its pieces beside plain computations, its norms on parts of a batch, its loss."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from checks import assert_close
from sketchy.experiments.workloads.initial import lecun_normal_
from sketchy.experiments.workloads.resnet50 import ResNet50
from sketchy.experiments.workloads.resnet50.network import MEAN, Bottleneck, ResNet, VirtualNorm
from sketchy.experiments.workloads.resnet50.workload import ResNetScale

WORKLOAD = ResNet50()
TINY: ResNetScale = WORKLOAD.presets["tiny"].scale
NORM = {"virtual": 4, "batch": 12}


def tiny(**changes: Any) -> tuple[nn.Module, ResNetScale, dict[str, Tensor]]:
    """A new network, its scale, and a batch of random pictures."""
    scale, source = replace(TINY, **changes), WORKLOAD.sources["synthetic"]
    torch.manual_seed(0)
    batch = source.open(Path(), scale).train.batch(range(16), None)
    return WORKLOAD.network(scale, source.sizes), scale, batch


def test_the_paper_network_has_25_557_032_weights_and_the_quarter_1_484_186() -> None:
    for name, classes, expected in (("paper", 1000, 25_557_032), ("quarter", 10, 1_484_186)):
        with torch.device("meta"):
            network = WORKLOAD.network(WORKLOAD.presets[name].scale, {"classes": classes})
        assert sum(p.numel() for p in network.parameters()) == expected


def test_strides_and_the_pool_divide_the_sides_by_32() -> None:
    network, sides = WORKLOAD.network(replace(TINY, stem="7x7"), {"classes": 4}), []
    for block in network.blocks:
        block.register_forward_hook(lambda *seen: sides.append(seen[2].shape[2]))
    network({"images": torch.zeros(8, 3, 64, 64, dtype=torch.uint8)})
    assert sides == [16, 8, 4, 2]


# -- norms --------------------------------------------------------------------------------------------


def plain_norm(x: Tensor) -> Tensor:
    mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), correction=0, keepdim=True)
    return (x - mean) / (variance + 1e-5).sqrt()


def test_a_virtual_norm_is_the_norms_of_the_parts_side_by_side() -> None:
    torch.manual_seed(0)
    norm, x = VirtualNorm(5, **NORM).double(), torch.randn(10, 5, 3, 2, dtype=torch.float64)
    norm.weight.data.normal_(), norm.bias.data.normal_()
    expected = torch.cat([plain_norm(part) for part in (x[:4], x[4:8], x[8:])])
    expected = expected * norm.weight.view(-1, 1, 1) + norm.bias.view(-1, 1, 1)
    assert_close(norm(x), expected, scale=1, tolerance=1e-12)


def test_running_averages_are_of_means_and_biased_variances_of_the_parts() -> None:
    torch.manual_seed(0)
    norm, x = VirtualNorm(5, **NORM).double(), 3 + torch.randn(12, 5, 3, 2, dtype=torch.float64)
    norm(x)
    parts = x.split(4)
    means = torch.stack([part.mean((0, 2, 3)) for part in parts]).mean(0)
    variances = torch.stack([part.var((0, 2, 3), correction=0) for part in parts]).mean(0)
    assert_close(norm.running_mean, 0.1 * means, scale=1, tolerance=1e-12)
    assert_close(norm.running_var, 0.9 + 0.1 * variances, scale=1, tolerance=1e-12)
    norm.eval()
    expected = (x - norm.running_mean.view(-1, 1, 1)) / (norm.running_var.view(-1, 1, 1) + 1e-5).sqrt()
    assert_close(norm(x), expected, scale=1, tolerance=1e-12)


def test_a_batch_in_several_passes_has_the_same_outputs_and_ages_the_averages_as_much() -> None:
    torch.manual_seed(0)
    one, several = (VirtualNorm(5, **NORM).double() for _ in range(2))
    x = torch.randn(12, 5, 3, 2, dtype=torch.float64)
    assert torch.equal(one(x), torch.cat([several(part) for part in x.split(4)]))
    for norm in (one, several):
        norm.running_var.fill_(1.0)
    one(torch.zeros_like(x))
    for part in torch.zeros_like(x).split(4):
        several(part)
    assert_close(one.running_var, several.running_var, scale=1, tolerance=1e-12)
    assert one.running_var[0].item() == pytest.approx(0.9)


def test_the_gradient_does_not_depend_on_how_a_batch_is_divided_into_virtual_batches() -> None:
    """So many ranks, or accumulation, take the steps of one."""
    network, scale, batch = tiny(micro_batch=8)
    network.double()
    found = []
    for size in (8, 16):
        network.zero_grad()
        for rows in torch.arange(16).split(size):
            loss, _ = WORKLOAD.loss(network, {name: x[rows] for name, x in batch.items()}, scale)
            loss.backward()
        found.append([p.grad.clone() for p in network.parameters()])
    for one, other in zip(*found, strict=True):
        assert_close(one, other, scale=other.abs().max() + 1e-12, tolerance=1e-5)  # the loss is float32


# -- blocks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("inputs", "stride"), [(12, 1), (8, 1), (12, 2)])
def test_a_block_is_three_convolutions_beside_a_shortcut(inputs: int, stride: int) -> None:
    torch.manual_seed(0)
    block, x = (
        Bottleneck(inputs, 3, stride, virtual=9, batch=9).double(),
        torch.randn(2, inputs, 4, 4).double(),
    )
    block.norm3.weight.data.fill_(1.0)
    y = plain_norm(functional.conv2d(x, block.conv1.weight)).relu()
    y = plain_norm(functional.conv2d(y, block.conv2.weight, stride=stride, padding=1)).relu()
    y = plain_norm(functional.conv2d(y, block.conv3.weight))
    short = x
    if (inputs, stride) != (12, 1):
        short = plain_norm(functional.conv2d(x, block.shortcut[0].weight, stride=stride))
    assert_close(block(x), (y + short).relu(), scale=1, tolerance=1e-10)


def test_a_new_block_adds_nothing_to_its_shortcut() -> None:
    x = torch.randn(4, 12, 4, 4)
    assert torch.equal(Bottleneck(12, 3, 1, **NORM)(x), x.relu())


def test_convolutions_start_truncated_normal_with_one_over_inputs_as_variance() -> None:
    torch.manual_seed(0)
    weight = torch.empty(200, 100, 3, 3)
    lecun_normal_(weight)
    std = 1 / math.sqrt(900)
    assert weight.std().item() == pytest.approx(std, rel=0.01)
    assert weight.abs().max().item() <= 2 * std / 0.8796 + 1e-6
    head = ResNet(1000, width=16, blocks=(1, 1, 1, 1), stem=3, dropout=0.0, **NORM).head
    assert head.weight.std().item() == pytest.approx(0.01, rel=0.02) and not head.bias.any()


def test_bytes_are_scaled_by_imagenets_mean_and_deviation() -> None:
    network, _, _ = tiny()
    seen: list[Tensor] = []
    network.stem.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    mean = (255 * torch.tensor(MEAN)).round().byte().view(1, 3, 1, 1).expand(8, 3, 16, 16)
    network({"images": mean})
    network({"images": torch.full_like(mean, 255)})
    assert seen[0].abs().max() < 0.01
    assert seen[1][0, :, 0, 0].tolist() == pytest.approx([2.2489, 2.4286, 2.6400], abs=1e-4)


# -- loss and score -----------------------------------------------------------------------------------


def test_the_loss_is_cross_entropy_with_uniform_smoothing() -> None:
    class Fixed(nn.Module):
        def forward(self, batch: Any) -> Tensor:
            return logits

    logits, labels = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.5, 3.0]]), torch.tensor([0, 1])
    batch = {"images": torch.zeros(2), "labels": labels}
    loss, count = WORKLOAD.loss(Fixed(), batch, replace(TINY, label_smoothing=0.3))
    targets = 0.7 * functional.one_hot(labels, 3) + 0.1
    assert float(loss) == pytest.approx(float(-(targets * logits.log_softmax(1)).sum()))
    assert int(count) == 2
    score = WORKLOAD.score([WORKLOAD.look(Fixed(), batch, TINY)] * 2, TINY)
    assert score.metric == 0.5
    assert score.loss == pytest.approx(float(-logits.log_softmax(1)[[0, 1], labels].mean()))


def test_the_loss_falls_on_one_repeated_batch() -> None:
    network, scale, batch = tiny(label_smoothing=0.0)
    optimizer, losses = torch.optim.AdamW(network.parameters(), 1e-2), []
    for _ in range(20):
        loss, count = WORKLOAD.loss(network, batch, scale)
        optimizer.zero_grad()
        (loss / count).backward()
        optimizer.step()
        losses.append(float(loss.detach() / count))
    assert losses[0] == pytest.approx(math.log(4), abs=0.1)
    assert losses[-1] < 0.3 * losses[0]


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("blocks", "3-4-6", "blocks=3-4-6: must be four numbers"),
        ("blocks", "3-4-6-x", "must be four numbers"),
        ("micro_batch", "8", "micro_batch=8: must be a multiple of the virtual batch of 3"),
        ("stem", "5x5", "stem=5x5: must be one of 7x7, 3x3"),
    ],
)
def test_a_wrong_setting_is_refused(setting: str, value: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TINY.changed({"virtual": 3, "micro_batch": 2} | {setting: value})
