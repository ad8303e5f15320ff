"""Which code made a number."""

import subprocess
import zlib
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = ("src", "benchmarks/*.py")


def commit() -> str:
    """Short hash of the commit at hand, with "+dirty" where code was changed since; empty outside git."""
    described = _git("rev-parse", "--short", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", *CODE)
    return f"{described}+dirty" if described and changed else described


def code() -> str:
    """The commit at hand, with a digest of what was changed since: equal where the code is."""
    changed = _git("diff", "HEAD", "--", *CODE)
    return f"{commit()} {zlib.crc32(changed.encode()):x}" if changed else commit()


def _git(*arguments: str) -> str:
    try:
        return subprocess.run(
            ["git", *arguments], capture_output=True, text=True, cwd=ROOT, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
