"""The training loop: rows, ranks, micro-batches, resuming, and runs that fail."""

import json
import math
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ranks import on_ranks
from sketchy.analysis.spectra import read
from sketchy.experiments.workloads import checkpoints, folder
from sketchy.experiments.workloads.gnn import GNN
from sketchy.experiments.workloads.gnn.sets import open_random
from sketchy.experiments.workloads.optimizers import OPTIMIZERS, make, planned_bytes
from sketchy.experiments.workloads.order import Order, epoch_order
from sketchy.experiments.workloads.ranks import joined
from sketchy.experiments.workloads.run import Run, Settings, meta_network, new_network
from sketchy.experiments.workloads.scale import GiveUp
from sketchy.experiments.workloads.signals import listening
from sketchy.experiments.workloads.watched import CONTROL, SPECTRA
from sketchy.experiments.workloads.workload import Batch, Data, Draw

DATA = open_random(both_ways=False)
TINY = GNN.presets["tiny"].scale


def settings(optimizer: str = "adamw", seed: int = 0, **changes: Any) -> Settings:
    return Settings("gnn", "tiny", "synthetic", optimizer, seed, TINY.changed(changes))


def trained(run: Run, steps: int | None = None) -> Run:
    for record in run:
        if record.step == steps:
            break
    return run


def curve(run: Run) -> list[tuple[int, float, float, float | None]]:
    """What must repeat to the bit."""
    return [(x.step, x.validation_loss, x.validation_metric, x.train_loss) for x in run.record.looks]


class Rows:
    """Rows without contents."""

    def __init__(self, count: int, lengths: Tensor | None = None) -> None:
        self.count, self.lengths = count, lengths

    def __len__(self) -> int:
        return self.count

    def batch(self, rows: Sequence[int], draw: Draw | None) -> Batch:
        return {"rows": torch.tensor(rows)}


# ---- which rows


@given(st.integers(4, 40), st.integers(0, 3), st.sampled_from([1, 2, 4]), st.booleans())
def test_ranks_share_each_step_and_an_epoch_has_no_row_twice(
    count: int, seed: int, world: int, sorted_by_length: bool
) -> None:
    split = Rows(count, torch.arange(count) % 7 if sorted_by_length else None)
    orders = [list(Order(split, seed, 4, 1, 0, 2 * (count // 4), rank, world)) for rank in range(world)]
    per_rank = 4 // world
    steps = [
        [key for order in orders for micro in order[step * per_rank : (step + 1) * per_rank] for key in micro]
        for step in range(2 * (count // 4))
    ]
    for epoch in (0, 1):
        own = [key for step in steps[epoch * (count // 4) : (epoch + 1) * (count // 4)] for key in step]
        assert {e for e, _ in own} == {epoch}
        assert len({row for _, row in own}) == len(own) == count // 4 * 4
    assert [len(step) for step in steps] == [4] * len(steps)


def test_rows_of_a_batch_have_similar_lengths_and_batches_come_in_random_order() -> None:
    lengths = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    taken = lengths[epoch_order(Rows(400, lengths), 0, 0, 8)]
    assert (taken.amax(1) - taken.amin(1)).max() == 7  # of one pool: eight that follow each other
    firsts = taken.amin(1)
    assert not torch.equal(firsts, firsts.sort().values)


def test_an_order_goes_on_in_the_middle() -> None:
    split = Rows(20)
    whole = list(Order(split, 3, 4, 2, 0, 12))
    assert list(Order(split, 3, 4, 2, 7, 12)) == whole[14:]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"batch": 24}, "there are only 20 rows"),
        ({"world": 4}, "makes 2 parts of a batch of 4, which 4 ranks"),
    ],
)
def test_batches_that_do_not_fit_are_refused(change: dict[str, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Order(**{"split": Rows(20), "seed": 0, "batch": 4, "micro_batch": 2, "first": 0, "steps": 1} | change)  # type: ignore[arg-type]


# ---- steps


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_run_that_was_stopped_ends_with_the_same_bits(optimizer: str, tmp_path: Path) -> None:
    whole, first = (Run(settings(optimizer, steps=12, start_step=3), DATA) for _ in range(2))
    trained(whole)
    asked = iter([*[(False, False)] * 6, (True, False)])
    list(folder.steps(first, tmp_path, asked=lambda: next(asked)))
    assert first.record.step == 7
    second = Run(settings(optimizer, steps=12, start_step=3), DATA)
    list(folder.steps(second, tmp_path))
    assert curve(second) == curve(whole)
    for ours, theirs in zip(second.network.parameters(), whole.network.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_loss_of_one_repeated_batch_falls(optimizer: str) -> None:
    few = replace(DATA, train=type(DATA.train)(DATA.train.all, DATA.train.rows[:16]))  # type: ignore[attr-defined,call-arg]
    chosen = settings(optimizer, steps=40, look_every=8, lr=1e-2, beta2=0.99, dropout=0.0)
    run = trained(Run(chosen, few))
    losses = [look.train_loss for look in run.record.looks[1:]]
    assert losses[-1] < 0.7 * losses[0]  # type: ignore[operator]


def test_micro_batches_add_up_to_the_batch() -> None:
    together, apart = (
        trained(Run(settings(micro_batch=size, dropout=0.0, steps=6), DATA)) for size in (16, 4)
    )
    for one, other in zip(together.network.parameters(), apart.network.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-5)


def _on_two_ranks(path: Path) -> None:
    with joined("cpu") as ranks:
        run = trained(Run(settings(steps=6, micro_batch=4), DATA, ranks))
        if ranks.first:
            state = {"network": run.network.state_dict(), "losses": [look[1] for look in curve(run)]}
            torch.save(state, path)


def test_two_ranks_are_one_rank_with_accumulation(tmp_path: Path) -> None:
    on_ranks(2, _on_two_ranks, tmp_path / "weights.pt")
    two = torch.load(tmp_path / "weights.pt", weights_only=True)
    one = trained(Run(settings(steps=6, micro_batch=4), DATA))
    assert [look[1] for look in curve(one)] == pytest.approx(two["losses"], rel=1e-5)
    for name, weight in one.network.state_dict().items():
        torch.testing.assert_close(weight, two["network"][name], rtol=1e-3, atol=2e-5)


def test_the_seed_alone_makes_the_network_and_torchs_own_random_numbers_stay() -> None:
    before = torch.get_rng_state()
    first, again = new_network(settings()), new_network(settings("muon"))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(torch.equal, first.state_dict().values(), again.state_dict().values()))
    other = new_network(settings(seed=1))
    assert not torch.equal(first.state_dict()["head.weight"], other.state_dict()["head.weight"])


def test_bfloat16_is_used_forward_and_backward_only() -> None:
    run = trained(Run(settings(precision="bfloat16", steps=4), DATA))
    plain = trained(Run(settings(steps=4), DATA))
    assert {p.dtype for p in run.network.parameters()} == {torch.float32}
    assert run.record.looks[-1].validation_loss != plain.record.looks[-1].validation_loss
    assert run.record.looks[-1].validation_loss == pytest.approx(
        plain.record.looks[-1].validation_loss, rel=0.02
    )


def test_gradients_are_clipped_by_the_norm_of_all() -> None:
    run = Run(settings("adamw", clip=1e-3, steps=2), DATA)
    norms = []
    step = run.optimizer.step
    run.optimizer.step = lambda: (norms.append(_norm(run)), step())[1]  # type: ignore[method-assign,func-returns-value]
    trained(run)
    assert run.record.looks[-1].gradient_norm > 1e-2
    assert norms == pytest.approx([1e-3, 1e-3], rel=1e-2)


def _norm(run: Run) -> float:
    return math.sqrt(
        sum(float(p.grad.square().sum()) for p in run.network.parameters() if p.grad is not None)
    )


# ---- runs that fail


def test_a_loss_that_is_not_finite_ends_a_run_with_the_worst_score(tmp_path: Path) -> None:
    run = Run(settings(lr=1e30, steps=20, warmup=0.0), DATA)
    *_, record = folder.steps(run, tmp_path)
    assert record.ended == "diverged" and record.step < 20 and "not finite" in record.why
    assert record.score(GNN.metric).loss == math.inf and record.score(GNN.metric).metric == 0.0
    assert folder.ended(tmp_path) == record


@pytest.mark.parametrize(("limit", "ended"), [(1.0, "gave up"), (0.0, "finished")])
def test_a_trial_that_is_not_good_enough_in_time_gives_up(limit: float, ended: str) -> None:
    run = trained(Run(settings(steps=9, look_every=100), DATA, give_up=GiveUp(0.3, limit)))
    assert run.record.ended == ended
    assert [look.step for look in run.record.looks] == ([0, 3] if ended == "gave up" else [0, 3, 9])
    assert (run.record.score(GNN.metric).metric == 0.0) == (ended == "gave up")


class Broken(Rows):
    """Rows of which one can't be read."""

    def batch(self, rows: Sequence[int], draw: Draw | None) -> Batch:
        if draw is not None and 33 in rows:
            raise ValueError("pictures/33.jpg: damaged")
        return DATA.train.batch(rows, draw)


def test_a_file_that_cannot_be_read_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    data = Data(Broken(len(DATA.train)), DATA.validation, DATA.test)
    bad_step = next(
        i for i, step in enumerate(epoch_order(data.train, 0, 0, TINY.batch).tolist()) if 33 in step
    )
    assert bad_step > 0
    with pytest.raises(ValueError, match=r"pictures/33\.jpg: damaged"):
        list(folder.steps(Run(settings(), data), tmp_path))
    whole, repaired = Run(settings(), DATA), Run(settings(), DATA)
    list(folder.steps(repaired, tmp_path))
    assert curve(repaired) == curve(trained(whole))
    with pytest.raises(ValueError, match=r"pictures/33\.jpg: damaged"):
        trained(Run(settings(), data, workers=1))


# ---- folders


def test_the_last_two_checkpoints_are_kept_and_a_damaged_one_is_not_needed(tmp_path: Path) -> None:
    asked = iter([(False, True)] * 5 + [(True, False)])
    list(folder.steps(Run(settings(), DATA), tmp_path, asked=lambda: next(asked)))
    names = sorted(path.name for path in tmp_path.glob("*.pt"))
    assert names == ["checkpoint-00000005.pt", "checkpoint-00000006.pt"]
    (tmp_path / names[1]).write_bytes(b"half of a fi")
    told: list[str] = []
    run = Run(settings(), DATA)
    list(folder.steps(run, tmp_path, tell=told.append))
    assert "resumed after step 5" in told[0] and "checkpoint-00000006.pt: damaged" in told[1]
    assert curve(run) == curve(trained(Run(settings(), DATA)))
    assert not list(tmp_path.glob("*.pt"))
    lines = [json.loads(line) for line in (tmp_path / folder.METRICS).read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 5, 10, 15, 20]


def test_sigusr1_saves_and_goes_on(tmp_path: Path) -> None:
    found = []
    with listening() as asked:
        for record in folder.steps(Run(settings(steps=5), DATA), tmp_path, asked=asked):
            found.append(sorted(path.name for path in tmp_path.glob("*.pt")))
            if record.step == 3:
                os.kill(os.getpid(), signal.SIGUSR1)
    assert found == [[], [], [], ["checkpoint-00000003.pt"], ["checkpoint-00000003.pt"]]
    assert record.ended == "finished"


@pytest.mark.parametrize("optimizer", ["shampoo", "adamw"])
def test_spectra_of_a_run_that_was_stopped_are_those_of_a_whole_run(optimizer: str, tmp_path: Path) -> None:
    """Of dense Shampoo's own factors, and of the monitor's for AdamW."""
    chosen = settings(optimizer, steps=12, start_step=2, roots_every=2)
    *_, record = folder.steps(Run(chosen, DATA), tmp_path / "whole", spectra=3)
    asked = iter([*[(False, False)] * 6, (True, False)])
    list(folder.steps(Run(chosen, DATA), tmp_path / "stopped", spectra=3, asked=lambda: next(asked)))
    list(folder.steps(Run(chosen, DATA), tmp_path / "stopped", spectra=3))
    for name in (SPECTRA, CONTROL):
        assert (tmp_path / "stopped" / name).read_text() == (tmp_path / "whole" / name).read_text()
    records = read(tmp_path / "whole" / SPECTRA)
    assert {record.step for record in records} == {4, 8, 12}
    assert {record.top for record in records if record.dim >= 8} == {8}
    assert max(record.dim for record in records) == 32 and record.ended == "finished"


def test_a_save_that_is_due_is_made(tmp_path: Path) -> None:
    found = []
    for record in folder.steps(Run(settings(steps=3), DATA), tmp_path, save_every=0.0):
        state, _ = checkpoints.newest(tmp_path, torch.device("cpu"))
        found.append((record.step, state and state["record"]["step"]))
    assert found == [(1, None), (2, 1), (3, 2)]


def test_a_folder_of_other_options_is_refused_and_a_finished_run_is_not_repeated(tmp_path: Path) -> None:
    list(folder.steps(Run(settings(steps=2), DATA), tmp_path))
    with pytest.raises(ValueError, match=r"lr was 0\.001 and is now 0\.002"):
        folder.steps(Run(settings(steps=2, lr=2e-3), DATA), tmp_path)
    again = list(folder.steps(Run(settings(steps=2), DATA), tmp_path))
    assert [record.ended for record in again] == ["finished"]


def test_trials_never_look_at_test_rows(tmp_path: Path) -> None:
    class Secret(Rows):
        def batch(self, rows: Sequence[int], draw: Draw | None) -> Batch:
            raise AssertionError("test rows")

    run = trained(Run(settings(steps=2), replace(DATA, test=Secret(4)), test=False))
    assert all(look.test_loss is None for look in run.record.looks)


# ---- optimizers


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_planned_bytes_are_those_of_the_state(optimizer: str) -> None:
    run = trained(Run(settings(optimizer, steps=2, start_step=1), DATA))
    planned = planned_bytes(optimizer, meta_network(run.settings), TINY)
    weights = len(list(run.network.parameters()))
    assert run.record.optimizer_bytes == pytest.approx(planned, abs=16 * weights)  # counters


def test_the_papers_optimizers_precondition_all_matrices_with_its_settings() -> None:
    for name, attribute in (("shampoo", "roots_every"), ("s-shampoo", "update_every")):
        optimizer: Any = make(name, new_network(settings()), TINY.changed({"roots_every": 7}))
        assert {row.path for row in optimizer.report() if len(row.shape) == 2} == {"sketch"}
        group = optimizer.param_groups[0]
        assert (group[attribute], group["start_step"], group["block_size"]) == (7, 5, 32)
        assert group["graft"] == "rmsprop_normalized" and not group["nesterov"]
    assert group["rank"] == 8


def test_a_step_of_muon_has_equal_singular_values_and_the_length_of_adamws() -> None:
    weight = torch.nn.Parameter(torch.zeros(6, 9))
    scale = TINY.changed({"lr": 1.0, "weight_decay": 0.0})
    network = torch.nn.Module()
    network.register_parameter("weight", weight)
    optimizer = make("muon", network, scale)
    weight.grad = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
    optimizer.step()
    assert float(weight.detach().norm()) == pytest.approx(0.2 * math.sqrt(54), rel=1e-3)
    values = torch.linalg.svdvals(weight.detach())
    assert values.max() < 2 * values.min()
