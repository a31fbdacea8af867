"""The approval protocol's figures in full: `python -m tests.acceptance.approval_figures [NAME ...]`; without, all.

Each is the test of the same name in tests/acceptance/approvals/, at full size.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tests.acceptance.approvals.scale import FULL_VARIABLE

FOLDER = Path(__file__).parent / "approvals"
NAMES = sorted(path.stem.removeprefix("test_") for path in FOLDER.glob("test_*.py"))


def main() -> int:
    """Measure and print; 0 only if every figure holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    asked = parser.parse_args()
    unknown = set(asked.names) - set(NAMES)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    files = [str(FOLDER / f"test_{name}.py") for name in asked.names or NAMES]
    return subprocess.call([sys.executable, "-m", "pytest", *files], env={**os.environ, FULL_VARIABLE: "full"})


if __name__ == "__main__":
    sys.exit(main())
