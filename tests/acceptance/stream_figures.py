"""The event streams' figures in full: `python -m tests.acceptance.stream_figures [NAME ...]`; without, all.

Each is the test of the same name in tests/acceptance/streams/, at full size.
"""

import sys
from pathlib import Path

from tests.acceptance.figures import measure

if __name__ == "__main__":
    sys.exit(measure(Path(__file__).parent / "streams", __doc__))
