"""What the last run of pytest saw fail, thrice more and alone. `python -m tests.again`

Thousands of tests run beside each other with real processes, clocks and browsers on two cores. One that fails there and
passes three times alone is unsteady: it is named, and is to be mended, but it does not fail the run. That holds for a
few, and only where real time has a part in a test; what computes, replays or checks the repository is steady or broken.

Each by its name, a module that could not be collected as a whole: pytest's own `--last-failed` runs everything where
none of the names that it has kept is found again, and so after a module that is collected the second time.
"""

import json
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

FAILED = Path(".pytest_cache/v/cache/lastfailed")
TIMES = 3
MOST = 3
"""More that fail at once have a common cause."""
IN_REAL_TIME = (
    *("tests/integration/", "tests/workflow/", "tests/acceptance/", "tests/pages/", "tests/ports/", "tests/protocol/"),
    *("tests/unit/local/", "tests/unit/api/test_connections.py", "tests/unit/egress/", "tests/sandbox/"),
)


def failed(kept: Path = FAILED) -> list[str]:
    """The names of what failed; none where nothing did, or the run ended before any test."""
    return sorted(json.loads(kept.read_text())) if kept.exists() else []


def may_be_unsteady(names: Collection[str]) -> bool:
    """Whether what failed can be forgiven at all: few tests, each by its name, and all of them in real time."""
    return 0 < len(names) <= MOST and all("::" in name and name.startswith(IN_REAL_TIME) for name in names)


def main() -> int:
    """Run them one after the other; 0 where all of them are unsteady and no more."""
    names = failed()
    if not names:
        print("No test failed by its name: the run itself did.")
        return 1
    times = TIMES if may_be_unsteady(names) else 1
    print(f"Alone, what failed: {' '.join(names)}", flush=True)
    command = [sys.executable, "-m", "pytest", "-rpf", *names]
    passed = all(subprocess.call(command) == 0 for _ in range(times))
    if passed and may_be_unsteady(names):
        print(f"UNSTEADY, to be mended, failed beside others and passed {TIMES} times alone: {' '.join(names)}")
        return 0
    print("What is PASSED above has failed all the same.")
    return 1


if __name__ == "__main__":
    sys.exit(main())
