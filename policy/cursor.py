"""Where a reader of a stream stands, as the opaque id of every event.

A cursor holds the high-water marks of both stores (design section 6): the last durable event and the last live entry
that the reader has seen. Entries are comparable only within one epoch of the live stream; losing Valkey begins another.
"""

import re
from dataclasses import dataclass

FIRST_ENTRY = "0-0"
"""Before every entry."""
NO_EPOCH = "0"
"""The reader has never seen a live entry."""
LOST_EPOCH = "x"
"""Nobody knows which live entries the reader holds: it was told to forget some, or it gave a bare number."""

_FULL = re.compile(r"([0-9]{1,18})\.([0-9a-z]{1,32})\.([0-9]{1,18}-[0-9]{1,18})")
_BARE = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Cursor:
    """The marks of both stores: `<durable seq>.<stream epoch>.<stream id>`."""

    seq: int = 0
    epoch: str = NO_EPOCH
    entry_id: str = FIRST_ENTRY

    def __str__(self) -> str:
        return f"{self.seq}.{self.epoch}.{self.entry_id}"


def parse_cursor(text: str) -> Cursor | None:
    """The cursor in `text`, a bare durable number included; None where it is neither."""
    full = _FULL.fullmatch(text)
    if full is not None:
        return Cursor(int(full[1]), full[2], full[3])
    if _BARE.fullmatch(text):
        return Cursor(int(text), LOST_EPOCH)
    return None


def entry_order(entry_id: str) -> tuple[int, int]:
    """An entry's place within its epoch, for comparing."""
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds), int(number)
