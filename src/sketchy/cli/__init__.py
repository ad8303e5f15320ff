"""The command line: parse options, call the library, write rows to disk, print a table.

The command `x` is the function `x` in the module `sketchy.cli.x`. At module level, these modules import only
what their options need. Torch and the rest are imported when a command runs.
"""

import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from inspect import signature
from io import BytesIO, TextIOWrapper
from typing import Annotated, get_type_hints

from sketchy.cli.mistakes import last_words
from sketchy.cli.patience import STOPPED, patience

COMMANDS = (
    *("demo", "memory", "sketch", "spectra", "oco", "counterexample"),
    *("train", "tune", "doctor", "bench", "report"),
)

HELP = """\
usage: sketchy COMMAND [options]

Second-order training that fits in memory: sketches, online learning, experiments.

{commands}

  sketchy COMMAND --help   the options of a command, with an example
  sketchy --version
  --debug                  with any command: print the traceback of an error

Exit status: 0 success, 1 failure, 2 invalid command or options, 130 Ctrl-C.
"""


def program() -> None:
    """The program `sketchy`. After a Ctrl-C it leaves without Python's tidying, which may take a second."""
    try:
        main()
    except SystemExit as stop:
        if stop.code == STOPPED:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(STOPPED)
        raise


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command. What ends it is a SystemExit."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    end = words.index("--") if "--" in words else len(words)
    own, passed_on = words[:end], words[end + 1 :]  # words after -- are passed on
    debug = "--debug" in own
    own = [word for word in own if word != "--debug"]
    name = own[0] if own else "--help"
    program = f"sketchy {name}" if name in COMMANDS else "sketchy"
    with last_words(program, debug=debug), patience(f"{program}: stopped{_resumes(name)}"):
        if name in COMMANDS:
            _run(name, own[1:], passed_on)
        elif name in ("-h", "--help"):
            print(HELP.format(commands="\n".join(map(_summary, COMMANDS))), end="")
            raise SystemExit(0 if own else 2)
        elif name == "--version":
            from sketchy import __version__

            print(__version__)
        else:
            close = get_close_matches(name, COMMANDS, n=1)
            guess = f"did you mean {close[0]}?" if close else f"commands: {', '.join(COMMANDS)}"
            print(f"sketchy: unknown command {name!r}; {guess}", file=sys.stderr)
            raise SystemExit(2)


def _run(name: str, words: Sequence[str], passed_on: Sequence[str]) -> None:
    import tyro

    call = command(name)
    _mark_optional(call)
    if passed_on:
        if "arguments" not in signature(call).parameters:
            print(f"sketchy {name}: takes no arguments after --", file=sys.stderr)
            raise SystemExit(2)
        call = partial(call, arguments=tuple(passed_on))
    looks = (tyro.conf.DisallowNone, tyro.conf.FlagCreatePairsOff)  # None can't be given, nor --no-json
    with _wrapped() if {"-h", "--help"} & set(words) else nullcontext():
        tyro.cli(call, prog=f"sketchy {name}", args=words, config=looks)


def _mark_optional(call: Callable[..., None]) -> None:
    """In the help, say (optional) where the default is None: the text says what happens without it."""
    from tyro.conf import arg

    hints = get_type_hints(call, include_extras=True)
    for name, parameter in signature(call).parameters.items():
        if parameter.default is None:
            call.__annotations__[name] = Annotated[hints[name], arg(help_behavior_hint="(optional)")]


@contextmanager
def _wrapped() -> Iterator[None]:
    """Print a help with its long lines wrapped. Examples stay on one line, to be copied."""
    encoding = sys.stdout.encoding or "utf-8"  # it decides on the look of boxes
    shown = TextIOWrapper(BytesIO(), encoding, write_through=True)
    try:
        with redirect_stdout(shown):
            yield
    finally:
        shown.seek(0)
        for line in shown.read().splitlines():
            kept = line.startswith(("Example:", " ", *"╭│╰"))  # of boxes
            print(line if kept else textwrap.fill(line, _width()))


def _width() -> int:
    return max(60, shutil.get_terminal_size().columns - 1)


def _resumes(name: str) -> str:
    """What to say if a command that can be resumed was ended before it had saved."""
    able = name in COMMANDS and "resume" in (command(name).__doc__ or "")
    return " while it was busy; run the same command to resume from what is saved" if able else ""


def command(name: str) -> Callable[..., None]:
    """The function of a command."""
    return getattr(import_module(f"sketchy.cli.{name}"), name)


def _summary(name: str) -> str:
    """The first line of the command's docstring, wrapped for the terminal."""
    first = (command(name).__doc__ or "").partition("\n")[0]
    return textwrap.fill(first, _width(), initial_indent=f"  {name:16}", subsequent_indent=18 * " ")
