"""Train with every optimizer on a task, tune the learning rates alike, and compare the losses."""

from benchmarks.quality.compare import main

if __name__ == "__main__":
    main()
