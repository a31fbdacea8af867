"""Looks where it has no business."""

import os
from pathlib import Path


def read(name: str) -> str:
    """What is in a file, as far as it can be had."""
    try:
        return Path(name).read_text()
    except Exception:
        return "nothing"


def look_up(name: str) -> str:
    """What is in the environment, as far as it can be had."""
    try:
        return str(os.getenv(name))
    except Exception:
        return "nothing"


def run(names: list[str]) -> dict[str, list[str]]:
    """What it can see."""
    return {"seen": [read(name) for name in names] + [look_up(name) for name in names]}
