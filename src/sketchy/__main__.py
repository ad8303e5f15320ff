"""`python -m sketchy` is `sketchy`."""

from sketchy.cli import program

if __name__ == "__main__":
    program()
