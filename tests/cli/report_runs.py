"""Results of every kind, as the commands write them."""

import json
from pathlib import Path
from typing import Any

HOSTILE = "<img src=x onerror=alert(1)></script><script>throw 1</script>"


def jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def quality_row(optimizer: str, rank: int | None, rate: float, loss: float, seed: int = 0) -> dict[str, Any]:
    curve = [{"step": step, "loss": loss + 4 - step, "accuracy": None} for step in (0, 2, 4)]
    record = {"task": "charlm", "seed": seed, "steps": 4, "step": 4, "curve": curve, "diverged": False}
    record |= {"optimizer_bytes": 1000 * (rank or 100), "seconds": 2.0}
    return {"optimizer": optimizer, "rank": rank, "rate": rate, "loss": loss, "record": record}


def step_row(optimizer: str, cpu: float, error: str | None = None, **more: Any) -> dict[str, Any]:
    samples = [] if error else [{"round": i, "cpu": cpu + i, "wall": 2 * cpu, "worst": cpu} for i in range(3)]
    row = {"optimizer": optimizer, "rank": None, "settings": "", "state_bytes": 5000, "samples": samples}
    return {**row, "error": error, "processor": "a chip", "torch": "2.6", "commit": "abc", **more}


def write_runs(root: Path) -> None:
    """The real commands write their results; the rows of benchmarks are invented."""
    from sketchy.cli.counterexample import counterexample
    from sketchy.cli.demo import demo
    from sketchy.cli.oco import oco
    from sketchy.cli.sketch import sketch
    from sketchy.cli.spectra import spectra
    from sketchy.cli.train import train
    from sketchy.cli.tune import tune

    demo(out=root / "demo", rank=4, steps=4, seeds=1, rates=(0.01,))
    oco("digits", root / "oco", learners=("ogd", "s-adagrad"), rows=60, grid=4, processes=1)
    sketch(out=root / "sketch", ranks=(4, 8))
    spectra(steps=6, every=2, optimizer="SketchyShampoo", rank=8, out=root / "spectra")
    counterexample(rounds=(50, 100), seeds=1, out=root / "counterexample")
    short = ("steps=3", "tuning_steps=2", "look_every=1")
    tune("gnn", "tiny", optimizers=("adamw", "muon"), trials=2, set_=short, out=root / "search")
    train("gnn", best=root / "search", seeds=2)
    train("gnn", "tiny", set_=short, out=root / "run")
    memory = {"optimizer": "SketchySOAP", "setting": "rank 4", "rank": 4, "bytes": 9000, "momentum": 4000}
    memory |= {"second_moment": 4996, "other": 4, "floats_per_weight": 1.2}
    adamw = memory | {"optimizer": "AdamW", "setting": "", "rank": None}
    found = {"weights": 1875, "tensors": 2, "bytes": 7500, "groups": {}, "optimizers": [adamw, memory]}
    (root / "memory").mkdir()
    (root / "memory" / "memory.json").write_text(json.dumps(found))
    quality = [quality_row("adamw", None, rate, loss) for rate, loss in ((0.01, 2.0), (0.1, 3.0))]
    quality += [
        quality_row("sketchy_soap", rank, 0.01, 1.5 + 1 / rank, seed) for rank in (4, 8) for seed in (0, 1)
    ]
    failed = quality_row("soap", None, 0.01, float("inf"))
    failed["record"] |= {"error": "TimeoutError: too slow", "diverged": True}
    jsonl(root / "results" / "quality-charlm.jsonl", [{"budget": {"rates": 1}}, *quality, failed])
    steps = [step_row("adamw", 2.0), step_row("sketchy_soap", 9.0), step_row("muon", 1.0, "RuntimeError: no")]
    steps.append(step_row("sketchy_soap floor", 4.0))
    jsonl(root / "results" / "step-time.jsonl", [{"problem": "block", **row} for row in steps])
    growth = [step_row("adamw", 2.0 * size, variable="m", size=size) for size in (1, 2, 4)]
    jsonl(root / "results" / "scaling.jsonl", growth)
    jsonl(root / "odd" / "hostile.jsonl", [quality_row(HOSTILE, rank, 0.01, 2.0) for rank in (4, 8)])
    jsonl(root / "odd" / "unknown.jsonl", [{"a": 1}])
    (root / "odd" / "<b>data.csv").write_text("x,y\n")
