"""`python -m bench [--quick] [--stacks compact,merged]`: measures, prints the table, and writes bench/results/."""

import argparse
import asyncio
import os
import sys

from bench.report import write_results
from bench.run import FULL, QUICK, run
from bench.stacks import ALL


def main() -> None:
    """Measures and reports; exits with 1 if two stacks did not do the same work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="about four minutes instead of half an hour; ratios are coarser"
    )
    parser.add_argument("--stacks", default=",".join(ALL), help=f"of {', '.join(ALL)}; the first is the reference")
    options = parser.parse_args()
    names = [name for name in options.stacks.split(",") if name]
    if unknown := set(names) - ALL.keys():
        parser.error(f"no such stack: {', '.join(sorted(unknown))}")
    plan = QUICK if options.quick else FULL
    try:
        measured = asyncio.run(run(plan, [ALL[name] for name in names]))
    except RuntimeError as error:
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
        os._exit(1)
    print(write_results(plan, measured))
    sys.stdout.flush()
    os._exit(0)  # Temporal's core may crash in the interpreter's own shutdown


if __name__ == "__main__":
    main()
