"""The best rate between those tried: the vertex of a parabola, with its standard error over seeds."""

import math
from pathlib import Path

import pytest
from benchmarks.quality import rate_transfer
from benchmarks.quality.runs import save

from sketchy.experiments.quality import ADAMW, Run, Variant
from sketchy.experiments.training import Look, Record

RATES = (0.001, 0.002, 0.004, 0.008)


def sweep(best: float, *noise: float) -> dict[float, dict[int, float]]:
    """Parabolas in log rate, one for each seed. Noise shifts each parabola and its vertex."""
    return {
        rate: {
            seed: 1 + 9 * shift + math.log2(rate / best / 2**shift) ** 2 for seed, shift in enumerate(noise)
        }
        for rate in RATES
    }


@pytest.mark.parametrize("best", [0.0015, 0.002, 0.0031, 0.004])
def test_a_parabola_is_found_wherever_its_vertex_lies(best: float) -> None:
    found = rate_transfer.best_between(sweep(best, 0.0, 0.0))
    assert (
        found is not None and found.rate == pytest.approx(best) and found.error == pytest.approx(0, abs=1e-6)
    )


def test_the_error_is_that_of_a_mean_over_seeds() -> None:
    shifts = (-0.2, 0.0, 0.1, 0.1)
    found = rate_transfer.best_between(sweep(0.003, *shifts))
    assert found is not None and found.rate == pytest.approx(0.003)
    variance = sum(shift**2 for shift in shifts) / 3
    assert found.error == pytest.approx(math.log(2) * math.sqrt(variance / 4))


def test_a_best_rate_at_an_end_is_not_guessed() -> None:
    assert rate_transfer.best_between(sweep(0.0005, 0.0, 0.0)) is None
    assert rate_transfer.ratio(None, rate_transfer.Best(0.004, 0.1)) == "a neighbour is missing"


def test_a_seed_that_diverged_at_a_neighbour_does_not_count() -> None:
    losses = sweep(0.003, 0.0, 0.0)
    losses[0.008][1] = losses[0.004][1] = math.inf
    found = rate_transfer.best_between(losses)
    assert found is not None and found.rate == pytest.approx(0.003) and math.isnan(found.error)


def test_seeds_that_did_not_run_at_all_three_rates_do_not_count() -> None:
    losses = sweep(0.003, 0.0, 0.0)
    losses[0.002][2] = -9.0  # a lucky seed
    found = rate_transfer.best_between(losses)
    assert found is not None and found.rate == pytest.approx(0.003)


def test_rates_tie_with_the_best_unless_they_are_worse_by_two_standard_errors() -> None:
    best = dict.fromkeys(range(4), 1.0)
    losses = {0.002: best, 0.004: {0: 1.3, 1: 0.9, 2: 1.3, 3: 0.9}, 0.008: {0: 1.1, 1: 1.1, 2: 1.1, 3: 1.1}}
    assert rate_transfer.ties(losses) == [0.004]
    losses[0.001] = {0: 1.0, 1: 9.0}  # two seeds say little of a spread
    losses[0.004][3] = math.inf
    assert rate_transfer.ties(losses) == []


def test_ours_are_shown_at_all_rates_that_may_be_adamws_best(tmp_path: Path) -> None:
    soap, runs = Variant("sketchy_soap", 64), {}
    for rate, losses in sweep(0.004, 0.0, 0.0, 0.0).items():
        for seed, loss in losses.items():
            adamw = 1.1 + 0.01 * abs(rate - 0.002) + 0.1 * (seed - 1) * (rate == 0.004)
            for variant, each in ((ADAMW, adamw), (soap, loss)):
                record = Record("charlm", seed, 400, 400, curve=[Look(400, each, None)])
                runs[Run(variant, rate, seed, 400)] = record
    save(tmp_path / "quality-charlm.jsonl", runs)
    adamw_row, soap_row = rate_transfer.rows(tmp_path / "quality-charlm.jsonl", "charlm", 64)
    assert adamw_row[2] == "1.100 ± 0.000, 1.100 ± 0.100 at 0.004"
    assert soap_row[2] == "2.000 ± 0.000, 1.000 ± 0.000 at 0.004"
    assert soap_row[4].endswith(", 1.00 of 0.004")


def test_the_table_has_adamw_and_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    soap = Variant("sketchy_soap", 32)
    runs = {
        Run(variant, rate, seed, 400): Record("charlm", seed, 400, 400, curve=[Look(400, loss, None)])
        for variant, best in ((ADAMW, 0.002), (soap, 0.004))
        for rate, losses in sweep(best, 0.0, 0.0).items()
        for seed, loss in losses.items()
    }
    save(tmp_path / "quality-charlm.jsonl", runs)
    rate_transfer.main(["--results", str(tmp_path)])
    _, _, adamw, ours = capsys.readouterr().out.splitlines()
    assert adamw == "| charlm | AdamW | 1.000 ± 0.000 | 1.000 ± 0.000 at 0.002 |  | 2 |"
    assert (
        ours
        == "| charlm | SketchySOAP, rank 32 | 2.000 ± 0.000 | 1.000 ± 0.000 at 0.004 | 2.00 (×/÷ 1.00) | 2 |"
    )


def test_without_runs_it_says_how_to_make_them(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"benchmarks.quality makes them"):
        rate_transfer.main(["--results", str(tmp_path)])
