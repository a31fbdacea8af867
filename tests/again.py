"""What the last run of pytest saw fail, once more: what passes now is unsteady. `python -m tests.again`

Each by its name, a module that could not be collected as a whole: pytest's own `--last-failed` runs everything where
none of the names that it has kept is found again, and so after a module that is collected the second time.
"""

import json
import subprocess
import sys
from pathlib import Path

FAILED = Path(".pytest_cache/v/cache/lastfailed")


def failed(kept: Path = FAILED) -> list[str]:
    """The names of what failed; none where nothing did, or the run ended before any test."""
    return sorted(json.loads(kept.read_text())) if kept.exists() else []


def main() -> int:
    """Run them one after the other; how they came out."""
    names = failed()
    if not names:
        print("No test failed by its name: the run itself did.")
        return 0
    print("Once more, what failed, for information: what is PASSED below is unsteady; it has failed all the same")
    return subprocess.call([sys.executable, "-m", "pytest", "-rpf", *names])


if __name__ == "__main__":
    sys.exit(main())
