"""Ids are minted here and nowhere else: UUIDv7, so that they sort by time."""

import os
import time
from uuid import UUID


def new_id() -> str:
    """A fresh UUIDv7 as text."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds << 80) | int.from_bytes(os.urandom(10), "big")
    value = (value & ~(0xF << 76)) | (0x7 << 76)
    value = (value & ~(0x3 << 62)) | (0x2 << 62)
    return str(UUID(int=value))
