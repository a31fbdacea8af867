"""Whether a tool of the assembly runs, or its earlier output is used again (S1-31 to S1-33).

Two gates, and one condition before both: what feeds the tool must be what fed it then. The sample that these rules come
from leaves that condition out of its first gate; then a tool that was complete once would never hear of news.
"""

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from contracts.digests import digest_of
from contracts.pipeline import Bundle


class Gate(StrEnum):
    """What becomes of a tool in this turn."""

    RUN = "run"
    COMPLETE = "complete"
    """Its earlier output is complete enough, and nothing that feeds it has changed (gate A)."""
    SAME_SLICE = "same_slice"
    """The user has said nothing new since (gate B)."""


@dataclass(frozen=True, slots=True)
class Now:
    """What would feed a tool in this turn."""

    slice_hash: str
    upstream: str


def gate(kept: Bundle | None, now: Now, threshold: float) -> Gate:
    """The table of policy/skip in the tests, in the order of its rows."""
    if kept is None or kept.upstream != now.upstream:
        return Gate.RUN
    if kept.slice_hash == now.slice_hash:
        return Gate.SAME_SLICE
    return Gate.COMPLETE if kept.completeness >= threshold else Gate.RUN


def upstream_of(basis: str, slice_hash: str | None, outputs: Mapping[str, str]) -> str:
    """Digest of all that feeds a tool: what is fixed about it, the conversation where it hears it, and the digests of
    the outputs that it depends on or has values of, by name, as far as these are there."""
    return digest_of({"basis": basis, "slice": slice_hash, "outputs": dict(outputs)})


def slice_hash(said: Iterable[str], acknowledgements: Iterable[str] = ()) -> str:
    """Digest of what a user has said. Case, spacing and messages that only acknowledge make no difference."""
    nothing_new = {_plain(each) for each in acknowledgements} | {""}
    return digest_of([plain for each in said if (plain := _plain(each)) not in nothing_new])


def _plain(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(folded.split()).strip(".!? ")
