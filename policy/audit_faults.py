"""What a verification of the audit can find, and how it is told."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

MOST_FAULTS = 100
"""Of those that are told; all are counted, by kind."""


class FaultKind(StrEnum):
    """What is wrong with a row, a link or a head."""

    LINK_MISSING = "link_missing"
    """A number of the chain is not there."""
    LINK_BROKEN = "link_broken"
    """A link does not name the hash of the one before it."""
    ROW_MISSING = "row_missing"
    ROW_CHANGED = "row_changed"
    """The row, or its link, does not give the link's hash."""
    ROW_UNCHAINED = "row_unchained"
    """A row that is in no link was never committed by the program."""
    ROW_REPEATED = "row_repeated"
    """Two rows share a salted digest: one is a copy."""
    SIGNATURE_WRONG = "signature_wrong"
    SIGNATURE_MISSING = "signature_missing"
    KEY_UNKNOWN = "key_unknown"
    """Signed by a key that this deployment does not have; keep old keys after the new one."""
    BODY_MISSING = "body_missing"
    """A body is gone, and no erasure accounts for it."""
    BODY_CHANGED = "body_changed"
    HEAD_MOVED = "head_moved"
    """The row that holds the chain's head does not name its last link."""
    HEAD_DIFFERS = "head_differs"
    """The chain has another hash than the one that was exported."""
    HEAD_FORGED = "head_forged"
    """An exported head whose signature is wrong."""
    TAIL_CUT = "tail_cut"
    """An exported head lies behind the last link."""
    RAN_UNDECIDED = "ran_undecided"
    """A call that needed an approval has begun, and no row says that somebody had given it by then."""


ABOUT_HEADS = frozenset({FaultKind.HEAD_MOVED, FaultKind.HEAD_DIFFERS, FaultKind.HEAD_FORGED, FaultKind.TAIL_CUT})


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that was not written so; `seq` is its place in the chain, 0 where it has none."""

    seq: int
    kind: FaultKind
    audit_id: int | None = None
    subject: str | None = None
    """What it is about, where that is no row: an approval's id."""


def told_of(faults: Iterable[Fault], most: int) -> tuple[Fault, ...]:
    """At most so many: each kind has its share, so that many of one hide none of another. Those about heads first, the
    others by their place."""
    by_kind: defaultdict[FaultKind, list[Fault]] = defaultdict(list)
    for fault in sorted(faults, key=lambda fault: fault.seq):
        by_kind[fault.kind].append(fault)
    turns = sorted((turn, kind) for kind, found in by_kind.items() for turn in range(len(found)))
    told = [by_kind[kind][turn] for turn, kind in turns[:most]]
    return tuple(sorted(told, key=lambda fault: (fault.kind not in ABOUT_HEADS, fault.seq, fault.kind)))
