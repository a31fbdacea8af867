"""Whether a tenant's audit chain is what was written: rows in, faults out.

Two things are looked at. Each row's HMAC covers what it says, so that nobody without the key writes or changes one,
whatever he does to the chain. The chain's hashes cover order and time; who recomputes all of it from some row on still
differs from every signed head that was exported since, and a head behind the last row tells of a tail that was cut.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from policy.audit_faults import MOST_FAULTS, Fault, FaultKind, told_of
from policy.audit_key import Keyring, framed, row_text

GENESIS = "0" * 64
"""`prev` of a tenant's first row."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Entry:
    """An audit row without its body."""

    at: datetime
    kind: str
    subject: str
    actor: str | None
    turn_id: str | None
    body_digest: str
    signature: str


@dataclass(frozen=True, slots=True)
class Link:
    """A place in the chain with the row that it names."""

    seq: int
    audit_id: int
    prev: str
    hash: str
    entry: Entry | None
    """None: there is no such row."""
    found_digest: str | None = None
    """The digest of the body that is there, None where none is."""
    erased: bool = False
    """Whether an erasure accounts for a body that is gone."""


@dataclass(frozen=True, slots=True)
class Head:
    """The last link of a chain."""

    seq: int
    hash: str


@dataclass(frozen=True, slots=True)
class Report:
    """What a verification came to."""

    rows: int
    head: Head
    heads_checked: int
    erased: int
    """Rows whose body was erased with its person."""
    faults: tuple[Fault, ...]
    """Some of each kind, those about heads first."""
    faults_found: int
    faults_by_kind: Mapping[FaultKind, int]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults_found


def link_hash(seq: int, prev: str, entry: Entry) -> str:
    """The hash of a link, as the database makes it at commit."""
    text = framed(
        prev,
        str(seq),
        str((entry.at - _EPOCH) // _MICROSECOND),
        entry.kind,
        entry.subject,
        entry.actor,
        entry.turn_id,
        entry.body_digest,
        entry.signature,
    )
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(slots=True)
class ChainCheck:
    """A verification under way. Holds the marks and some faults of each kind, never the rows: fed in order, it needs no
    memory."""

    tenant_id: str
    keyring: Keyring
    marks: Mapping[int, frozenset[str]]
    """The hash, by place, that signed heads and seals name."""
    unsigned_through: int = 0
    """Rows up to here are older than signing; a seal vouches for them."""
    most_faults: int = MOST_FAULTS
    last: Head = Head(0, GENESIS)
    rows: int = 0
    erased: int = 0
    marks_seen: int = 0
    faults: list[Fault] = field(default_factory=list)
    counts: Counter[FaultKind] = field(default_factory=Counter)

    def feed(self, links: Iterable[Link]) -> None:
        """Look at the next links, in order."""
        for link in links:
            if link.seq != self.last.seq + 1:
                self._found(self.last.seq + 1, FaultKind.LINK_MISSING)
            elif link.prev != self.last.hash:
                self._found(link.seq, FaultKind.LINK_BROKEN, link.audit_id)
            self._look_at(link)
            if link.seq in self.marks:
                self.marks_seen += 1
                if self.marks[link.seq] != {link.hash}:
                    self._found(link.seq, FaultKind.HEAD_DIFFERS, link.audit_id)
            self.rows += 1
            self.last = Head(link.seq, link.hash)

    def note(self, faults: Iterable[Fault]) -> None:
        """Take up what was found elsewhere."""
        for fault in faults:
            self._add(fault)

    def report(self, head: Head) -> Report:
        """The end: `head` is what the database says the last link is."""
        if head != self.last:
            self._found(head.seq, FaultKind.HEAD_MOVED)
        for seq in sorted(self.marks):
            if seq > self.last.seq:
                self.marks_seen += 1
                self._found(seq, FaultKind.TAIL_CUT)
        return Report(
            self.rows,
            self.last,
            self.marks_seen,
            self.erased,
            told_of(self.faults, self.most_faults),
            self.counts.total(),
            dict(sorted(self.counts.items())),
        )

    def _look_at(self, link: Link) -> None:
        entry = link.entry
        if entry is None:
            self._found(link.seq, FaultKind.ROW_MISSING, link.audit_id)
            return
        if link_hash(link.seq, link.prev, entry) != link.hash:
            self._found(link.seq, FaultKind.ROW_CHANGED, link.audit_id)
        if not entry.signature:
            if link.seq > self.unsigned_through:
                self._found(link.seq, FaultKind.SIGNATURE_MISSING, link.audit_id)
        elif not self.keyring.knows(entry.signature):
            self._found(link.seq, FaultKind.KEY_UNKNOWN, link.audit_id)
        elif not self.keyring.verifies(
            row_text(self.tenant_id, entry.kind, entry.subject, entry.actor, entry.turn_id, entry.body_digest),
            entry.signature,
        ):
            self._found(link.seq, FaultKind.SIGNATURE_WRONG, link.audit_id)
        if link.found_digest is None:
            self.erased += link.erased
            if not link.erased:
                self._found(link.seq, FaultKind.BODY_MISSING, link.audit_id)
        elif link.found_digest != entry.body_digest:
            self._found(link.seq, FaultKind.BODY_CHANGED, link.audit_id)

    def _found(self, seq: int, kind: FaultKind, audit_id: int | None = None) -> None:
        self._add(Fault(seq, kind, audit_id))

    def _add(self, fault: Fault) -> None:
        self.counts[fault.kind] += 1
        if self.counts[fault.kind] <= self.most_faults:
            self.faults.append(fault)
