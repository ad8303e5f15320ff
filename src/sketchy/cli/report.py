"""`sketchy report`: one HTML page of the results of runs."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from sketchy.cli.mistakes import user_mistakes

RUNS = arg(metavar="RUN_DIR ...", help_behavior_hint="(at least one)")


def report(
    runs: Positional[Annotated[tuple[Path, ...], RUNS]] = (),
    out: Path = Path("runs/report.html"),
    json: bool = False,
) -> None:
    """Build one HTML page with tables and interactive curves of runs; it works offline.

    Example: sketchy report runs benchmarks/results --out runs/report.html

    Shows the results of `sketchy demo`, `oco`, `spectra`, `sketch`, `counterexample`, the benchmarks,
    and `sketchy memory --json > runs/NAME/memory.json`. Unsupported files are listed at the end.

    Args:
        runs: Directories of runs, or single files.
        out: The HTML file.
        json: Print the titles of the sections and the unsupported files as JSON.
    """
    import shlex
    import time

    from sketchy import __version__
    from sketchy.experiments.report import collect
    from sketchy.files import write

    with user_mistakes("sketchy report"):
        if not runs:
            raise ValueError("give at least one directory, such as runs/demo")
        page = collect(runs)
        command = shlex.join(["sketchy", "report", *map(str, runs), "--out", str(out)])
        content = page.html(command, version=__version__, date=time.strftime("%Y-%m-%d"))
        out.parent.mkdir(parents=True, exist_ok=True)
        write(out, content)
    if json:
        from json import dumps

        sections = [{"title": section.title, "source": section.source} for section in page.sections]
        print(dumps({"page": str(out), "sections": sections, "not_understood": page.not_understood}))
        return
    for section in page.sections:
        print(f"{section.title}   {section.source}")
    for file, why in page.not_understood.items():
        print(f"not understood: {file}: {why}")
    print(f"Page: {out}")
