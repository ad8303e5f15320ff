"""The estimate for many devices: its bytes are those of a step, and owners win where the formula says."""

import math
from collections import Counter

import pytest
import torch
from benchmarks.speed.sharded_estimate import OURS, Cost, Options, Products, fsdp, gathered, main, ours, owned

from sketchy import SketchyShampoo, SketchySOAP
from sketchy.analysis.state import Weight
from sketchy.analysis.traffic import batches_on_ranks, on_ranks
from sketchy.optim.engine import Engine


@pytest.mark.parametrize(("kind", "thin"), [(SketchyShampoo, 7), (SketchySOAP, 9)])
def test_owners_send_less_beyond_two_rows_over_seven_or_nine_ranks(kind: type[Engine], thin: int) -> None:
    """Ours send thin n l (W - 1) / W numbers and owners 2 m n (W - 1) / W². Equal at W = 2 m / (thin l)."""
    m, n, rank = 16384, 4096, 16
    weight = Weight((m, n), path="sketch")
    equal = 2 * m / (thin * rank)
    for devices in (8, 512):
        sent = ours(kind, weight, devices, rank).sent
        assert sent == pytest.approx(4 * thin * n * rank * (devices - 1) / devices, rel=0.05)
        assert sent / owned(weight, devices).sent == pytest.approx(devices / equal, rel=0.05)
    fewer, more = math.floor(0.9 * equal), math.ceil(1.1 * equal)
    assert ours(kind, weight, fewer, rank).sent < owned(weight, fewer).sent
    assert ours(kind, weight, more, rank).sent > owned(weight, more).sent


def test_the_sum_over_weights_is_what_a_step_of_all_of_them_sends() -> None:
    weights = [Weight((300, 200), path="sketch")] * 3 + [Weight((200, 500), path="sketch")] * 2
    for kind in OURS:
        total = sum((ours(kind, w, 8, 16) for w in weights), Cost())
        assert total.sent == pytest.approx(on_ranks(kind, weights, 8, rank=16).sent, abs=len(weights))


def test_products_are_counted_and_those_along_the_rows_are_divided() -> None:
    with Products() as found:
        torch.empty(3, 5, device="meta") @ torch.empty(5, 7, device="meta")
        torch.empty(2, 3, 7, device="meta").baddbmm_(
            *(torch.empty(2, *s, device="meta") for s in ((3, 5), (5, 7)))
        )
    assert found.flops == 2 * 3 * 5 * 7 * (1 + 2)
    weight = Weight((4096, 4096), path="sketch")
    for kind, products in ((SketchyShampoo, 16), (SketchySOAP, 20)):
        flops = ours(kind, weight, 8, 16).flops * 8
        assert flops == pytest.approx(products * 16 * weight.count, rel=0.1), kind


def test_batches_are_those_of_a_step() -> None:
    """On two ranks, a wave holds many small weights, and a batch serves all of them."""
    weights = [Weight((300, 200), path="sketch")] * 3 + [Weight((200, 500), path="sketch")] * 2
    assert batches_on_ranks(SketchySOAP, weights, 2, rank=16) == 1
    assert batches_on_ranks(SketchySOAP, [Weight((300,), path="adam")], 2, rank=16) == 0
    large = [Weight((8192, 8192), path="sketch")] * 16  # a wave has up to a gigabyte
    few, many = (batches_on_ranks(SketchyShampoo, large, devices, rank=16) for devices in (64, 2))
    assert few == 1 < many <= 4


def test_others_send_whole_gradients() -> None:
    weight = Weight((4096, 4096), path="sketch")
    assert gathered(weight, 8).sent == weight.bytes * 7 / 8
    assert owned(weight, 8).sent == 2 * weight.bytes / 8 * 7 / 8
    assert gathered(weight, 8).flops == 8 * owned(weight, 8).flops == 5 * 6 * 4096**3
    assert fsdp(Counter([weight]), 8) == 2 * weight.bytes * 7 / 8


def test_time_is_that_of_bytes_products_and_eigenproblems() -> None:
    options = Options(bandwidth=1e9, rate=1e12, batch_ms=1)
    assert Cost(sent=2e9, flops=3e12, batches=2).seconds(options) == pytest.approx(2 + 3 + 2 * 1e-3)


@pytest.mark.parametrize(
    "words",
    [["--rank", "1"], ["--devices", "1", "8"], ["--bandwidth", "0"], ["--rate", "-1"], ["--batch-ms", "0"]],
    ids=str,
)
def test_assumptions_that_cannot_be_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2 and f"{words[0][2:]}=" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_prints_both_models_and_says_that_it_is_an_estimate(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["--devices", "8", "64"])
    said = " ".join(capsys.readouterr().out.split())
    assert all(word in said for word in ("Llama-2-7B", "Llama-2-70B", "owners", "nothing was run on a GPU"))
