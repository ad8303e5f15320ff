"""`sketchy doctor`: are the optimizers right and fast on this device?"""

from pathlib import Path

from sketchy.cli.mistakes import user_mistakes


def doctor(
    device: str | None = None,
    width: int | None = None,
    layers: int | None = None,
    rank: int = 64,
    quick: bool = False,
    out: Path = Path("runs/doctor"),
) -> None:
    """Check all optimizers on your device against the CPU and float64, count what a step starts, and time it.

    Example: sketchy doctor

    Example: sketchy doctor --device cuda:1 --width 1024

    Prints Markdown and writes doctor.json and doctor.md. Takes about a minute. If a check fails, the exit
    status is 1: please open an issue, and paste doctor.json into it.

    Args:
        device: The device, such as cpu, cuda, cuda:1, mps or xpu; by default the best one that torch finds.
        width: Width of the GPT-2 blocks that are timed; 768 by default, 256 on a CPU.
        layers: Number of these blocks; 12 by default, 4 on a CPU.
        rank: Rank of the sketches in the timed blocks, the paper's l.
        quick: Check fewer steps and time small blocks: a few seconds.
        out: Directory for the results.
    """
    import json
    import sys

    from rich.console import Console
    from rich.progress import Progress

    from sketchy.analysis.doctor import Setup, examine
    from sketchy.analysis.doctor.machine import device_of
    from sketchy.analysis.doctor.page import failures, markdown
    from sketchy.experiments.pool import one_thread
    from sketchy.files import write

    with user_mistakes("sketchy doctor"):
        setup = Setup.of(device_of(device), width, layers, rank, quick)
        out.mkdir(parents=True, exist_ok=True)
    with one_thread(), Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("starting", total=None)
        found = examine(
            setup,
            lambda what, done, total: progress.update(bar, description=what, completed=done, total=total),
        )
    page = markdown(found)
    write(out / "doctor.json", json.dumps(found, allow_nan=False) + "\n")
    write(out / "doctor.md", page + "\n")
    print(page)
    print(f"\nWritten: {out / 'doctor.json'}, {out / 'doctor.md'}", file=sys.stderr)
    if failed := failures(found):
        what = "a check" if len(failed) == 1 else f"{len(failed)} checks"
        print(
            f"sketchy doctor: {what} failed; please open an issue with {out / 'doctor.json'} in it",
            file=sys.stderr,
        )
        raise SystemExit(1)
