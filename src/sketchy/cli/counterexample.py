"""`sketchy counterexample`: Observation 2, where Ada-FD's bound grows faster than S-AdaGrad's."""

from pathlib import Path

from sketchy.cli.mistakes import user_mistakes

PROMISED = {"s-adagrad": 0.5, "ada-fd": 0.75}  # the exponents of Obs. 2


def counterexample(
    rounds: tuple[int, ...] = (250, 500, 1000, 2000, 4000),
    dim: int = 20,
    sketch_size: int = 5,
    seeds: int = 4,
    out: Path = Path("runs/counterexample"),
) -> None:
    """Run two learners on the losses of Observation 2: S-AdaGrad's bound grows as T^1/2, Ada-FD's as T^3/4.

    Example: sketchy counterexample --rounds 250 500 1000 --seeds 2

    Both learners are tuned to each T, as their theorems require. Prints the bounds, the regrets and their
    fitted exponents. Writes results.jsonl and growth.png.

    Args:
        rounds: The horizons T, in rounds.
        dim: Dimension. The losses are drawn from as many orthonormal vectors.
        sketch_size: Rank of the sketches, the paper's l.
        seeds: Number of random streams to average over.
        out: Directory for the results.
    """
    import json

    from rich import box
    from rich.console import Console
    from rich.table import Table

    from sketchy.experiments import plot
    from sketchy.experiments.pool import one_thread
    from sketchy.files import write
    from sketchy.oco.counterexample import growth

    console = Console(highlight=False)
    horizons = sorted(set(rounds))
    with user_mistakes("sketchy counterexample"):
        if len(horizons) < 2 or horizons[0] < 1:
            raise ValueError(
                f"rounds={' '.join(map(str, rounds))}: must be two or more distinct positive numbers"
            )
        if seeds < 1:
            raise ValueError(f"seeds={seeds}: must be at least 1")
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"out={str(out)!r}: cannot be used: {error.strerror}") from error
        with console.status(f"playing {2 * sum(horizons):,} rounds"), one_thread():
            found = growth(horizons, dim=dim, sketch_size=sketch_size, seeds=seeds)

    title = f"Observation 2: {dim} dimensions, sketch size {sketch_size}, mean of {seeds} streams"
    columns = [f"{name} {what}" for name in found for what in ("bound", "regret")]
    shown = Table("T", *columns, title=title, box=box.SIMPLE_HEAD)
    for i, T in enumerate(horizons):
        shown.add_row(f"{T:,}", *(f"{v[i]:.1f}" for g in found.values() for v in (g.bound, g.regret)))
    shown.add_section()
    shown.add_row("exponent", *(f"{e:.3f}" for g in found.values() for e in (g.exponent, g.regret_exponent)))
    shown.add_row("Obs. 2", *(cell for name in found for cell in (f"{PROMISED[name]:g}", "")))
    console.print(shown)

    lines, curves = [], {}
    for name, result in found.items():
        curves[f"{name} bound, T^{result.exponent:.2f}"] = (result.rounds, result.bound)
        curves[f"{name} regret, T^{result.regret_exponent:.2f}"] = (result.rounds, result.regret)
        for T, bound, regret in zip(result.rounds, result.bound, result.regret, strict=True):
            lines.append({"learner": name, "rounds": T, "bound": bound, "regret": regret})
    write(out / "results.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    write(out / "growth.png", plot.powers(curves, title=title, x="rounds T", y="bound, regret"))
    console.print(f"{out}: results.jsonl, growth.png", markup=False)
