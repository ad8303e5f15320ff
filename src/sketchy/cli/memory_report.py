"""The results of `sketchy memory` as tables, JSON and a picture."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from sketchy.analysis import weights as sources
from sketchy.analysis.memory import Fit, Holder, by_group, fit, holders, human
from sketchy.analysis.peers import SOAP_LONGEST
from sketchy.analysis.rank_plans import RankPlan, last_spectra, rank_plan
from sketchy.analysis.state import GROUPS, Held, Weight
from sketchy.analysis.traffic import Mesh, OnRanks, on_ranks
from sketchy.core.arguments import parse_bytes
from sketchy.optim import SketchyShampoo, SketchySOAP


def gather(
    shapes: Iterable[str], model: str | None, files: Iterable[Path], dtype: str | None
) -> dict[str, Weight]:
    """All weights of the inputs."""
    parts = [sources.of_shapes(shapes), *(sources.of_file(path) for path in files)]
    if model is not None:
        parts.append(sources.of_factory(model))
    weights: dict[str, Weight] = {}
    for part in parts:
        twice = weights.keys() & part.keys()
        if twice:
            raise ValueError(f"weight {min(twice)!r} is in two inputs; give each weight once")
        weights |= part
    if not any(weight.count for weight in weights.values()):
        raise ValueError("no weights given; use --shape 4096x1024, --model or --file")
    if dtype is not None:
        weights = {name: replace(w, dtype=getattr(torch, dtype)) for name, w in weights.items()}
    return weights


class Report:
    """The state of every optimizer for these weights, and the ranks that fit a budget."""

    def __init__(
        self,
        weights: dict[str, Weight],
        ranks: Sequence[int],
        budget: str | None,
        options: dict[str, Any],
        shards: int = 1,
        replicas: int = 1,
        spectra: Path | None = None,
    ) -> None:
        if not ranks:
            raise ValueError("ranks is empty: give at least one rank, such as --ranks 16 64")
        self.mesh = Mesh(shards, replicas)
        if shards == 1 < replicas:
            raise ValueError(
                f"replicas={replicas}: needs --shards of at least 2; without shards each rank keeps all"
            )
        self.weights = weights
        self.count = sum(weight.count for weight in weights.values())
        self.rows: list[tuple[Holder, dict[str, Held]]] = [
            (holder, by_group(weights.values(), holder.held))
            for holder in holders(tuple(dict.fromkeys(ranks)), **options)
        ]
        self.on_ranks: list[tuple[Holder, OnRanks]] = [
            (holder, on_ranks(holder.ours, weights.values(), shards, replicas, **holder.options))
            for holder, _ in self.rows
            if holder.ours is not None and shards > 1 and not holder.few_bits
        ]
        self.budget = None if budget is None else parse_bytes("budget", budget)
        self.fits: list[Fit] = []
        self.plans: list[RankPlan] = []
        if spectra is not None and self.budget is None:
            raise ValueError(f"from={str(spectra)!r}: needs --budget, the memory for which ranks are chosen")
        if self.budget is not None:
            try:
                for optimizer in (SketchyShampoo, SketchySOAP):
                    self.fits.append(fit(optimizer, list(weights.values()), self.budget, **options))
                    if spectra is not None:
                        known = last_spectra(spectra)
                        self.plans.append(rank_plan(optimizer, weights, self.budget, known, **options))
            except ValueError as error:
                hint = "" if options.get("momentum_dtype") else ", which --momentum-dtype int8 divides by 4"
                raise ValueError(f"budget={budget!r}: {error}{hint}") from None

    def floats_per_weight(self, size: int) -> float:
        return size / 4 / self.count

    def members(self, group: str) -> list[Weight]:
        return [weight for weight in self.weights.values() if weight.group == group]


# ---- JSON


def print_json(report: Report) -> None:
    print(json.dumps(_plain(report), indent=2))


def _plain(report: Report) -> dict[str, Any]:
    found: dict[str, Any] = {
        "weights": report.count,
        "tensors": len(report.weights),
        "bytes": sum(weight.bytes for weight in report.weights.values()),
        "groups": {
            group: {"weights": sum(w.count for w in members), "tensors": len(members)}
            for group in GROUPS
            if (members := report.members(group))
        },
        "optimizers": [_plain_row(report, *row) for row in report.rows],
    }
    if report.budget is not None:
        found["budget"] = {
            "bytes": report.budget,
            "optimizers": [_plain_fit(report, found) for found in report.fits],
        }
    if report.plans:
        found["plans"] = [_plain_plan(report, plan) for plan in report.plans]
    if report.on_ranks:
        found["ranks"] = {
            "shards": report.mesh.shards,
            "replicas": report.mesh.replicas,
            "optimizers": [_plain_rank(*row) for row in report.on_ranks],
        }
    return found


def _plain_rank(holder: Holder, found: OnRanks) -> dict[str, Any]:
    return {
        "optimizer": holder.name,
        "setting": holder.setting,
        "rank": holder.rank,
        "most_bytes": found.most,
        "least_bytes": found.least,
        "sent_bytes": found.sent,
        "collectives": found.collectives,
        "gathered_bytes": found.gathered,
        "gathered_because": dict(found.reasons),
    }


def _plain_row(report: Report, holder: Holder, held: dict[str, Held]) -> dict[str, Any]:
    whole = sum(held.values(), Held())
    return {
        "optimizer": holder.name,
        "setting": holder.setting,
        "rank": holder.rank,
        "bytes": whole.total,
        "floats_per_weight": report.floats_per_weight(whole.total),
        **asdict(whole),
        "groups": {group: part.total for group, part in held.items()},
    }


def _plain_fit(report: Report, found: Fit) -> dict[str, Any]:
    """The rank of each weight, as parameter groups for an optimizer."""
    groups: dict[int | None, list[str]] = {}
    for name, weight in report.weights.items():
        groups.setdefault(found.ranks.get(weight), []).append(name)
    return {
        "optimizer": found.optimizer,
        "rank": found.rank,
        "bytes": found.bytes,
        "plan_bytes": found.ranks_bytes,
        "plan": [
            {"path": "adam", "names": names}
            if rank is None
            else {"path": "sketch", "rank": rank, "names": names}
            for rank, names in groups.items()
        ],
    }


def _plain_plan(report: Report, plan: RankPlan) -> dict[str, Any]:
    """The ranks of each weight, as parameter groups for an optimizer."""
    groups: dict[tuple[int, ...] | None, list[str]] = {}
    for name in report.weights:
        groups.setdefault(plan.ranks.get(name), []).append(name)
    return {
        "optimizer": plan.optimizer,
        "bytes": plan.bytes,
        "measured": plan.measured,
        "plan": [
            {"path": "adam", "names": names}
            if ranks is None
            else {"path": "sketch", "rank": list(ranks), "names": names}
            for ranks, names in groups.items()
        ],
    }


# ---- tables and a picture


def print_tables(report: Report, plot: Path | None) -> None:
    console = Console(markup=False, highlight=False)
    console.print(_estimates(report))
    if report.on_ranks:
        console.print()
        console.print(_ranks(report))
    if report.budget is not None:
        console.print()
        console.print(_fits(report, report.budget))
    if report.plans:
        console.print()
        console.print(_plans(report))
    if plot is not None:
        console.print(f"Picture: {plot}", style="dim")


def _estimates(report: Report) -> Table:
    table = Table(
        title=f"Optimizer state for {report.count:,} weights in {len(report.weights):,} tensors",
        caption="floats: of 4 bytes, per weight. Shampoo, the sketched optimizers, Muon and GaLore use Adam"
        " for embeddings, output heads and vectors. SOAP does not precondition sides longer than"
        f" {SOAP_LONGEST:,}, its authors' default. int4: sketchy.optim.SMALL, state in few bits.",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        caption_justify="left",
    )
    groups = [group for group in GROUPS if report.members(group)]
    table.add_column("optimizer", no_wrap=True)
    for column in (*groups, "total", "floats"):
        table.add_column(column, justify="right", no_wrap=True)
    own = {group: sum(weight.bytes for weight in report.members(group)) for group in groups}
    table.add_row("the weights themselves", *_cells(report, own), style="dim", end_section=True)
    following = [holder for holder, _ in report.rows[1:]]
    for (holder, held), after in zip_longest(report.rows, following):
        sizes = {group: part.total for group, part in held.items()}
        ends = after is not None and after.rank is not None and after.name != holder.name
        table.add_row(_label(holder), *_cells(report, sizes), end_section=ends)
    return table


def _ranks(report: Report) -> Table:
    mesh = report.mesh
    copies = f" in each of {mesh.replicas} replicas" if mesh.replicas > 1 else ""
    reasons = sorted({reason for _, found in report.on_ranks for reason in found.reasons})
    because = f" gathered: whole gradients, because {'; '.join(reasons)}." if reasons else ""
    table = Table(
        title=f"On each of {mesh.shards} shards{copies}",
        caption="largest, least: state of the rank that has most, or least. sent: by a rank in one step, on"
        f" accelerators that form rings, beside what FSDP2 itself sends.{because}",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        min_width=72,
        caption_justify="left",
    )
    table.add_column("optimizer", no_wrap=True)
    for column in ("largest", "least", "sent", "collectives", "gathered"):
        table.add_column(column, justify="right", no_wrap=True)
    for holder, found in report.on_ranks:
        sizes = map(human, (found.most, found.least, found.sent))
        table.add_row(_label(holder), *sizes, str(found.collectives), human(found.gathered))
    return table


def _label(holder: Holder) -> str:
    return ", ".join(filter(None, (holder.name, holder.setting)))


def _cells(report: Report, sizes: dict[str, int]) -> list[str]:
    whole = sum(sizes.values())
    return [*map(human, sizes.values()), human(whole), f"{report.floats_per_weight(whole):.3g}"]


def _fits(report: Report, budget: int) -> Table:
    table = Table(
        title=f"Ranks that fit {human(budget)}",
        caption="Either one rank for all weights, or a rank for each: r = s mn / (m + n), with the largest s"
        " that fits. Then the sketches of every m x n weight take the same share of its size. exact: the"
        " sketch loses nothing. --json lists the weights by name.",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        min_width=72,
        caption_justify="left",
    )
    table.add_column("weights")
    for column in ("tensors", *(found.optimizer for found in report.fits)):
        table.add_column(column, justify="right")
    counts = Counter(weight for weight in report.weights.values() if weight in report.fits[0].ranks)
    if not counts:
        sizes = [human(found.bytes) for found in report.fits]
        table.add_row("no weight is sketched: bytes at any rank", "0", *sizes)
        return table
    longest = max(max(weight.sides) for weight in counts)
    table.add_row("one rank for all", str(counts.total()), *(_rank(f.rank, longest) for f in report.fits))
    table.add_row("  bytes", "", *(human(f.bytes) for f in report.fits), style="dim", end_section=True)
    for weight, times in counts.items():
        ranks = (_rank(found.ranks[weight], max(weight.sides)) for found in report.fits)
        table.add_row("x".join(map(str, weight.shape)), str(times), *ranks)
    table.add_row("  bytes", "", *(human(f.ranks_bytes) for f in report.fits), style="dim")
    return table


def _plans(report: Report) -> Table:
    plans = report.plans
    table = Table(
        title=f"Ranks that follow the spectra, under {human(report.budget or 0)}",
        caption="The ranks of the left and of the right sketch that lose the fewest directions."
        f" {plans[0].measured} of {len(plans[0].ranks)} weights have measured spectra; the others are taken"
        " as usual. --json lists parameter groups.",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        min_width=72,
        caption_justify="left",
    )
    table.add_column("weight")
    for column in ("shape", *(plan.optimizer for plan in plans)):
        table.add_column(column, justify="right")
    for name in plans[0].ranks:
        shown = (", ".join(map(str, plan.ranks[name])) for plan in plans)
        table.add_row(name, "x".join(map(str, report.weights[name].shape)), *shown)
    table.add_row("  bytes", "", *(human(plan.bytes) for plan in plans), style="dim")
    return table


def _rank(rank: int | None, side: int) -> str:
    return f"{rank} (exact)" if rank is not None and rank >= side else str(rank)


def draw(report: Report, path: Path) -> None:
    """The paper's memory figure: the memory of each optimizer for the second moments of matrices."""
    from sketchy.experiments.plot import bars

    if path.suffix != ".png":
        raise ValueError(f"plot={str(path)!r}: must end in .png")
    matrices = report.members(GROUPS[0])
    if not matrices:
        raise ValueError(f"plot={str(path)!r}: no weight is a matrix (vectors and embeddings are not drawn)")
    count = sum(weight.count for weight in matrices)
    values, notes, ours = {}, [], set()
    for holder, held in report.rows:
        size = held[GROUPS[0]].second_moment
        if size:
            label = f"{_label(holder)}:  {holder.second_moment}"
            values[label] = size / 4 / count
            notes.append(f"{values[label]:.3g}   {human(size)}")
            if holder.rank is not None:
                ours.add(label)
    path.parent.mkdir(parents=True, exist_ok=True)
    title = f"Memory for second moments: {count:,} weights in m x n matrices ({len(matrices)} of them)"
    x = "floats per weight, without momentum and grafts (dashed: one per weight)"
    path.write_bytes(bars(values, title=title, x=x, notes=notes, strong=ours))
