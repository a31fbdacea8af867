"""The context assembly's figures: `python -m tests.acceptance.assembly_figures [NAME ...]`; without, all.

Each is the test of the same name in tests/acceptance/assembly/.
"""

import sys
from pathlib import Path

from tests.acceptance.figures import measure

if __name__ == "__main__":
    sys.exit(measure(Path(__file__).parent / "assembly", __doc__))
