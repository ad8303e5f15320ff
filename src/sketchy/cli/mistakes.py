"""How commands end when they can't go on: one sentence and an exit status; a traceback if it is asked for."""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from sketchy.experiments.mistakes import user_mistakes as user_mistakes
from sketchy.extras import missing

EXTRAS = {  # by what is imported; as in pyproject.toml
    "tyro": "cli",
    "rich": "cli",
    "numpy": "oco",
    "sklearn": "oco",
    "matplotlib": "plots",
    "plotly": "report",
}


@contextmanager
def last_words(command: str, *, debug: bool) -> Iterator[None]:
    """Around a whole command: what else ends it is told in one sentence; ``debug`` adds the traceback."""
    try:
        yield
    except SystemExit as stop:
        if debug and stop.__cause__ is not None:
            traceback.print_exception(stop.__cause__)
        raise
    except BrokenPipeError:  # whoever read the output has enough of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes at its end
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        if debug:
            traceback.print_exc()
        print(f"{command}: stopped", file=sys.stderr)
        raise SystemExit(130) from None
    except Exception as error:
        if debug:
            traceback.print_exc()
        print(f"{command}: {_sentence(error)}", file=sys.stderr)
        raise SystemExit(1) from None


def _sentence(error: Exception) -> str:
    package = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    if package in EXTRAS:
        return missing(package, EXTRAS[package])
    first = str(error).strip().partition("\n")[0]
    if package and package != "sketchy":
        return first
    return f"failed with {type(error).__name__}{': ' if first else ''}{first}; --debug shows where"
