"""The fuzzers for hours: `SKETCHY_FUZZ_MINUTES=60 make fuzz` (python tests/fuzz.py). They stop at a failure.

Each round has another random seed. After a failure, the last lines show the command that repeats its round;
above them, pytest shows the shortest sequence of calls that fails. Write it down as a test of its own.
"""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
FUZZERS = [
    "tests/optim/test_fuzz.py",
    "tests/optim/test_order.py",
    "tests/test_frequent_directions_fuzz.py",
]
CASES = "100"  # of each fuzzer in a round


def main() -> int:
    minutes = float(os.environ.get("SKETCHY_FUZZ_MINUTES", "120"))
    start, cases = time.monotonic(), 0
    while time.monotonic() - start < 60 * minutes:
        seed = random.SystemRandom().randrange(10**9)
        options = ["-q", "--no-header", "-p", "no:cacheprovider", f"--hypothesis-seed={seed}"]
        command = [sys.executable, "-m", "pytest", *options, *FUZZERS]
        variables = {"SKETCHY_FUZZ": "1", "SKETCHY_EXAMPLES": CASES}
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True
        )
        if done.returncode:
            shown = " ".join(f"{name}={value}" for name, value in variables.items())
            print(done.stdout, done.stderr, f"To repeat it: {shown} {' '.join(command)}", sep="\n")
            print(f"{cases} cases passed before")
            return 1
        cases += int(CASES) * len(FUZZERS)
        print(f"{cases} cases, {(time.monotonic() - start) / 60:.0f} minutes, no failure", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
