"""What the doctor found, as Markdown."""

from collections.abc import Iterator, Mapping
from typing import Any

from sketchy.analysis.markdown import table

CHECKS = {
    "cpu": "to the CPU",
    "float64": "to float64",
    "reloaded": "state reloaded",
    "skipped": "NaN step skipped",
}


def failures(found: Mapping[str, Any]) -> list[str]:
    """What failed, one line each."""
    lines = []
    for row in found["checks"]:
        what = ", ".join(CHECKS[name] for name in row["failed"])
        if row["error"] or what:
            lines.append(f"{row['optimizer']}, {row['weights']} weights: {row['error'] or what}")
    lines += [
        f"{step['optimizer']}, a step of blocks: {step['note']}" for step in found["steps"] if step["failed"]
    ]
    return lines


def markdown(found: Mapping[str, Any]) -> str:
    """The whole page: machine, checks, steps, and what failed."""
    failed = failures(found)
    parts = [
        f"**sketchy doctor** on {_machine(found['machine'])}",
        table(("check", "weights", *_HEAD, "allowed", ""), _checks(found), left=("check", "weights", "")),
        _about_checks(found),
        table(_columns(found), _steps(found), left=("one step", "")),
        _about_steps(found),
        "All checks passed." if not failed else "**Failed:**\n\n" + "\n".join(f"- {line}" for line in failed),
    ]
    return "\n\n".join(parts)


def _machine(machine: Mapping[str, Any]) -> str:
    m = machine
    versions = [f"sketchy {m['sketchy']}", f"torch {m['torch']}", f"Python {m['python']}"]
    versions += [f"{name} {m[name]}" for name in ("CUDA", "ROCm") if m[name]]
    settings = [
        f"{name.replace('_', ' ')} {m[name]}"
        for name in ("float32_matmul_precision", "allow_tf32", "cudnn.allow_tf32")
    ]
    name = ", ".join(part for part in (m["name"], m["memory"]) if part)
    threads = f"{m['threads']} thread{'s' if m['threads'] != 1 else ''}"
    where = f"`{m['device']}` ({name}), {m['system']}, {threads}, {m['cores']} cores"
    return f"{where}: {', '.join(versions)}. Settings: {', '.join(settings)}."


_HEAD = tuple(CHECKS.values())


def _checks(found: Mapping[str, Any]) -> Iterator[list[str]]:
    for row in found["checks"]:
        cells = [row["optimizer"], row["weights"]]
        for name in CHECKS:
            value, mark = row[name], " ✗" if name in row["failed"] else ""
            if name == "skipped":
                cells.append({True: "yes", False: "no", None: "-"}[value] + mark)
            else:
                cells.append(("not finite" if value is None and mark else _short(value)) + mark)
        verdict = row["error"] or ("failed" if row["failed"] else "ok" if row["judged"] else "not judged")
        yield [*cells, _short(row["allowed"]), verdict]


def _about_checks(found: Mapping[str, Any]) -> str:
    changes: dict[float, list[str]] = {}
    for row in found["checks"]:
        names = changes.setdefault(row["change"], [])
        names += [row["optimizer"]] if row["optimizer"] not in names else []
    least, *others = sorted(changes)
    shown = [
        f"{least:.1e}, a hundred roundings",
        *(f"{c:.1e} for {' and '.join(changes[c])}" for c in others),
    ]
    words = (
        f"Distances of weights on the device, after {found['setup']['steps']} steps, to the same steps",
        "elsewhere. They are relative to the movement of a weight; the largest of all weights is shown.",
        "Allowed: as far as the float64 run moves if its gradients are multiplied by 1 ± c with random",
        f"signs, and half an eps of the weight for each step. c is {'; '.join(shown)}.",
        "State reloaded: saved and loaded in the middle.",
        _ON_CPU if found["machine"]["device"] == "cpu" else "",
    )
    return " ".join(words).strip()


_ON_CPU = (
    "Here the device is the CPU itself: it takes the path of an accelerator, which reads no values, and is"
    " compared with its own path."
)


def _columns(found: Mapping[str, Any]) -> list[str]:
    device = ["kernels", "copies", "waits of the host"] if _has_device(found) else []
    return ["one step", "ms", "over AdamW", "host ms", "operations", *device, "launches, by meta tensors"]


def _has_device(found: Mapping[str, Any]) -> bool:
    return any(step["device"] for step in found["steps"])


def _steps(found: Mapping[str, Any]) -> Iterator[list[str]]:
    for step in found["steps"]:
        counts = [_count(step["operations"])]
        if _has_device(found):
            work = step["device"] or {}
            counts += [_count(work.get("kernels")), _named(work.get("copies")), _named(work.get("waits"))]
        counts.append(_count(step["launches_on_meta"]))
        if step["note"]:
            counts = [step["note"], *[""] * (len(counts) - 1)]
        host = step["host_milliseconds"]
        yield [
            step["optimizer"],
            _spread(step["milliseconds"]),
            _spread(step["over_adamw"]),
            "" if host is None else f"{host:.2f}",
            *counts,
        ]


def _about_steps(found: Mapping[str, Any]) -> str:
    s = found["setup"]
    words = (
        f"One step of GPT-2 blocks ({s['layers']} of width {s['width']}) with rank {s['rank']} in float32:",
        f"medians with quartiles of {s['rounds']} interleaved rounds. Host ms: time of the processor.",
        "Operations: torch's, called from Python on this device. Launches: what a step on meta tensors",
        "computes, as on an accelerator, without views. Kernels, copies and waits",
        "are those that torch's profiler saw." if _has_device(found) else "are not known here.",
    )
    return " ".join(words)


def _short(value: float | None) -> str:
    return "-" if value is None else "0" if value == 0 else f"{value:.1e}"


def _spread(values: list[float] | None) -> str:
    return "" if values is None else f"{values[1]:.2f} ({values[0]:.2f} to {values[2]:.2f})"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _named(counts: Mapping[str, int] | None) -> str:
    if counts is None:
        return "-"
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "0"
