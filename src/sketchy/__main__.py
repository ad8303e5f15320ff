"""`python -m sketchy` is the command `sketchy`."""

from sketchy.cli import main

if __name__ == "__main__":
    main()
