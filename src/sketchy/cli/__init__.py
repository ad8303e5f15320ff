"""The command line: parse, one library call, rows to disk, table to screen."""

from collections.abc import Callable
from typing import Any


def main() -> None:
    """The entry point of `sketchy`: one function a command."""
    try:
        import tyro

        from sketchy.cli.counterexample import counterexample
        from sketchy.cli.demo import demo
        from sketchy.cli.memory import memory
        from sketchy.cli.oco import oco
        from sketchy.cli.sketch import sketch
        from sketchy.cli.spectra import spectra
    except ImportError as error:
        raise SystemExit(
            f"sketchy: {error.name} is missing; pip install 'sketchy-optim[all]' brings it"
        ) from error

    commands: dict[str, Callable[..., Any]] = {
        "demo": demo,
        "memory": memory,
        "sketch": sketch,
        "spectra": spectra,
        "oco": oco,
        "counterexample": counterexample,
    }
    tyro.extras.subcommand_cli_from_dict(
        commands,
        prog="sketchy",
        description="Second-order training that fits in memory: sketches, online learning, experiments.",
    )
