"""The command line: parse, one library call, rows to disk, table to screen."""


def main() -> None:
    raise SystemExit("sketchy: no commands yet")
