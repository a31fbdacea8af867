"""What the programs that measure figures share: each figure is a test file of a folder, run at full size."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tests.acceptance.scale import FULL_VARIABLE


def measure(folder: Path, what: str | None) -> int:
    """Measure the figures that are named on the command line, or all; 0 only if every one holds."""
    names = sorted(path.stem.removeprefix("test_") for path in folder.glob("test_*.py"))
    parser = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    asked = parser.parse_args()
    unknown = set(asked.names) - set(names)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    files = [str(folder / f"test_{name}.py") for name in asked.names or names]
    return subprocess.call([sys.executable, "-m", "pytest", *files], env={**os.environ, FULL_VARIABLE: "full"})
