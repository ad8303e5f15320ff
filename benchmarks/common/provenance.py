"""Where a number comes from: code and machine."""

import subprocess
import time
import zlib
from pathlib import Path
from typing import Any

import torch

from sketchy.analysis.doctor.machine import processor

ROOT = Path(__file__).parents[2]
CODE = ("src", "benchmarks/*.py")


def commit() -> str:
    """Short hash of the current commit, with "+dirty" if code has changed since; empty outside git."""
    described = _git("rev-parse", "--short", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", *CODE)
    return f"{described}+dirty" if described and changed else described


def code() -> str:
    """The current commit and a digest of the changes since: equal if the code is equal."""
    changed = _git("diff", "HEAD", "--", *CODE)
    return f"{commit()} {zlib.crc32(changed.encode()):x}" if changed else commit()


def machine() -> dict[str, Any]:
    """The fields that say where and with what a row was measured."""
    return {
        "commit": commit(),
        "torch": torch.__version__,
        "processor": processor(),
        "date": time.strftime("%Y-%m-%d"),
    }


def _git(*arguments: str) -> str:
    try:
        return subprocess.run(
            ["git", *arguments], capture_output=True, text=True, cwd=ROOT, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
