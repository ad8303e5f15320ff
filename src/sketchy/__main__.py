"""`python -m sketchy` is `sketchy`."""

from sketchy.cli import main

if __name__ == "__main__":
    main()
