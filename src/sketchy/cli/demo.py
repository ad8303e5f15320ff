"""`sketchy demo`: train a small network with AdamW and with our optimizers. It needs no download."""

from pathlib import Path

from sketchy.cli.mistakes import user_mistakes


def demo(
    out: Path = Path("runs/demo"),
    rank: int = 16,
    steps: int = 200,
    seeds: int = 2,
    rates: tuple[float, ...] = (0.003, 0.01, 0.03),
) -> None:
    """Train a small network on scikit-learn's digits with AdamW, Shampoo, SketchyShampoo and SketchySOAP.

    Example: sketchy demo --rank 8 --out runs/demo

    Every optimizer runs with every learning rate, and is shown with its best. Prints a table and writes
    rows.jsonl, training.png and runs.jsonl (a line for each run). Takes about a minute. Ctrl-C saves and
    stops; run the same command to resume. After a complete run, it starts from the beginning.

    Args:
        out: Directory for the results.
        rank: Rank of the sketches, the paper's l.
        steps: Training steps in each run.
        seeds: Number of runs of each optimizer with each learning rate.
        rates: Learning rates to try for every optimizer.
    """
    import json
    from dataclasses import asdict

    from rich import box
    from rich.console import Console
    from rich.progress import track
    from rich.table import Table

    from sketchy.experiments import comparison, tasks
    from sketchy.experiments.pool import one_thread, stop_by_signal
    from sketchy.experiments.table import mark, note
    from sketchy.files import write

    console = Console()
    with user_mistakes("sketchy demo"):
        if not rates or seeds < 1:
            raise ValueError(f"rates={rates}, seeds={seeds}: give at least one rate and one seed")
        if steps < 1:
            raise ValueError(f"steps={steps}: must be at least 1")
        task = tasks.load("digits")
        makers = comparison.contenders(rank)
        for make in makers.values():  # invalid options raise now, not after a minute of training
            for rate in rates:
                make(task.model(0), rate)
        out.mkdir(parents=True, exist_ok=True)
    planned = [
        comparison.Run(name, rank, rate, seed, steps)
        for name in makers
        for rate in rates
        for seed in range(seeds)
    ]
    path = out / "runs.jsonl"
    with one_thread(), stop_by_signal() as stop:
        with user_mistakes("sketchy demo"):
            every = comparison.runs(task, planned, path, stopped=stop.is_set)
        records = list(track(every, "training", total=len(planned), console=console))
    if len(records) < len(planned):
        done = f"{len(records)} of {len(planned)} runs are saved in {path}"
        print(f"stopped; {done}; run the same command to resume")
        raise SystemExit(130)
    results = comparison.rows(records)

    held_out = len(task.validation)
    tried = ", ".join(f"{rate:g}" for rate in rates)
    best = [mark(row.rate, rates) for row in results]
    edge = note([best])
    table = Table(
        title=f"{steps} steps on {len(task.train)} digits, {held_out} held out; mean of {seeds} seeds",
        caption=f"Each with the best of the learning rates {tried}; sketches of rank {rank}."
        f" steps: to reach {results[0].optimizer}'s final loss; bytes: of optimizer state; ms/step: in the"
        f" optimizer; s/run: seconds of a run without validation. {edge}",
        box=box.SIMPLE_HEAD,
        caption_justify="left",
        padding=0,  # 80 columns must be enough
    )
    columns = ("optimizer", "rate", "loss", "accuracy", "steps", "bytes", "ms/step", "s/run")
    for column in columns:
        first = column == "optimizer"
        table.add_column(column, justify="left" if first else "right", no_wrap=first)
    for row, shown in zip(results, best, strict=True):
        table.add_row(
            row.optimizer,
            shown,
            f"{row.loss:.3f}±{row.loss_spread:.3f}",
            f"{row.accuracy:.1%}",
            str(steps)
            if row is results[0]
            else "never"
            if row.steps_to_first is None
            else f"{row.steps_to_first:.0f}",
            f"{row.bytes:,}",
            f"{row.milliseconds:.1f}",
            f"{row.seconds:.1f}",
        )
    console.print(table)

    write(out / "rows.jsonl", "".join(json.dumps(asdict(row)) + "\n" for row in results))
    picture = comparison.picture(results, title="A small network on scikit-learn's digits")
    write(out / "training.png", picture)
    console.print(f"Picture: {out / 'training.png'}   Rows: {out / 'rows.jsonl'}", style="dim")
