"""How large a test is: a sample in `make test`, the whole in `make soak`."""

import os

FULL_VARIABLE = "PERDURE_FIGURES"
FULL = os.environ.get(FULL_VARIABLE) == "full"
PATIENCE_SECONDS = 3_600 if FULL else 180
"""For one figure, with the making of its turns; what bounds a figure is in the figure itself."""
NO_RATE_LIMIT = {"PERDURE_DECISIONS_PER_MINUTE": "100000", "RATE_LIMITING_ENABLED": "false"}
"""For an API whose few deciders ask and decide in seconds what people do in weeks."""


def sized(full: int, sample: int) -> int:
    return full if FULL else sample
