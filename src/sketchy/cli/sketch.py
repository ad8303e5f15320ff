"""`sketchy sketch`: sketch a real data set. It needs no download."""

from pathlib import Path

from sketchy.cli.mistakes import user_mistakes


def sketch(out: Path = Path("runs/sketch"), ranks: tuple[int, ...] = (4, 8, 16, 32)) -> None:
    """Sketch scikit-learn's digits with several ranks, and compare true, certified and guaranteed error.

    Example: sketchy sketch --ranks 8 32 --out runs/sketch

    Prints a table and writes rows.jsonl and sketch.png. Takes seconds.

    Args:
        out: Directory for the results.
        ranks: Sketch ranks, the paper's l.
    """
    import json
    from dataclasses import asdict

    from rich import box
    from rich.console import Console
    from rich.progress import track
    from rich.table import Table

    from sketchy import FrequentDirections
    from sketchy.experiments import sketching
    from sketchy.files import write

    console = Console()
    with user_mistakes("sketchy sketch"):
        if not ranks:
            raise ValueError("ranks is empty: give at least one rank, such as --ranks 8 16")
        vectors = sketching.digits()
        count, dim = vectors.shape
        for rank in ranks:  # an invalid rank raises before the progress bar starts
            FrequentDirections(dim, rank)
        out.mkdir(parents=True, exist_ok=True)
    total = 2 * len(ranks)
    results = list(track(sketching.rows(vectors, ranks), "sketching", total=total, console=console))

    table = Table(
        title=f"{count} digits of {dim} pixels, one by one; the covariance has {dim * dim} numbers",
        caption="Errors are ‖C - BBᵀ‖ / ‖C‖; certified: the sketch's own upper bound; Lemma 1: the paper's",
        box=box.SIMPLE_HEAD,
    )
    for column in ("solver", "rank", "numbers", "true error", "certified", "Lemma 1", "µs/vector"):
        table.add_column(column, justify="left" if column == "solver" else "right")
    for row in results:
        errors = (f"{value:.5f}" for value in (row.error, row.certified, row.lemma_1))
        table.add_row(row.solver, str(row.rank), str(row.numbers), *errors, f"{row.microseconds:.0f}")
    console.print(table)

    write(out / "rows.jsonl", "".join(json.dumps(asdict(row)) + "\n" for row in results))
    title = f"Frequent Directions on {count} digits of {dim} pixels"
    write(out / "sketch.png", sketching.picture(vectors, results, title=title))
    console.print(f"Picture: {out / 'sketch.png'}   Rows: {out / 'rows.jsonl'}", style="dim")
