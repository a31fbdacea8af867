"""Records the shapes of a turn: `python -m tests.replay.record`, or only some: `... record gate_approved limited`. It
runs on the embedded parts, with the workers of tests/served_turns.py, in under a minute. README.md explains when to use
it."""

import sys
from pathlib import Path

import pytest

RECORDER = Path(__file__).with_name("recorder.py")


def main(names: list[str]) -> int:
    test = f"{RECORDER}::test_a_turn_runs_and_is_recorded"
    return pytest.main([f"{test}[{name}]" for name in names] or [str(RECORDER)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
