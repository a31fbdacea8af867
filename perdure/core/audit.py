"""What audit rows and exported chain heads are signed with: HMAC-SHA256, under keys that the database never sees.

A signature is `<key id>:<hex>`, so that a key can be followed by another: the first key signs, every key verifies.
"""

import hashlib
import hmac
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from pydantic import Field, ValidationError

from perdure.contracts.errors import CallerError
from perdure.contracts.values import Frozen, canonical_json
from perdure.core.identity import ADVICE, key_id, secrets_in


def framed(*fields: str | None) -> str:
    """`fields` as one text that no other fields give: each with its length in bytes before it. SQL writes it the same
    way (`audit_hash`)."""
    return "".join("-," if each is None else f"{len(each.encode())}:{each}," for each in fields)


@dataclass(frozen=True, slots=True)
class AuditKey:
    """One key; its id tells it apart and tells nothing of it."""

    id: str
    secret: bytes = field(repr=False)

    @classmethod
    def of(cls, text: str) -> "AuditKey":
        """The key of this text."""
        secret = text.encode()
        return cls(key_id("audit", secret), secret)

    def mac(self, text: str) -> str:
        """The signature of `text` without the key's id."""
        return hmac.new(self.secret, text.encode(), hashlib.sha256).hexdigest()

    def webhook_secret(self, tenant_id: str, webhook_id: str) -> str:
        """What the receiver of this webhook verifies with, which is kept nowhere else."""
        return self.mac(framed("webhook secret", tenant_id, webhook_id))


@dataclass(frozen=True, slots=True)
class Keyring:
    """The keys of a deployment, the one that signs first."""

    keys: tuple[AuditKey, ...]

    @classmethod
    def of(cls, text: str) -> "Keyring":
        """The keys in `text`, separated by commas or line ends.

        Raises: CallerError `audit_key_weak` where there is none, or one is too short to be random.
        """
        secrets = secrets_in(text)
        if not secrets:
            raise CallerError("audit_key_weak", f"an audit key {ADVICE}")
        return cls(tuple(map(AuditKey.of, secrets)))

    def sign(self, text: str) -> str:
        """The signature of `text` by the newest key."""
        return f"{self.keys[0].id}:{self.keys[0].mac(text)}"

    def signatures(self, text: str) -> list[str]:
        """The signature of `text` by every key, the newest first: to look something up that one of them signed."""
        return [f"{key.id}:{key.mac(text)}" for key in self.keys]

    def named(self, key_id: str) -> AuditKey | None:
        """The key of this id."""
        return next((key for key in self.keys if key.id == key_id), None)

    def knows(self, signature: str) -> bool:
        """Whether this was signed by a key that is here."""
        return any(key.id == signature.partition(":")[0] for key in self.keys)

    def verifies(self, text: str, signature: str) -> bool:
        """Whether one of the keys signed `text`."""
        key_id, _, mac = signature.partition(":")
        return any(key.id == key_id and hmac.compare_digest(key.mac(text).encode(), mac.encode()) for key in self.keys)


def row_text(tenant_id: str, kind: str, subject: str, actor: str | None, turn_id: str | None, body_digest: str) -> str:
    """What the signature of an audit row covers; the time and the place in the chain are the chain's."""
    return framed("audit row", tenant_id, kind, subject, actor, turn_id, body_digest)


def head_text(tenant_id: str, seq: int, chain_hash: str, at: str) -> str:
    """What the signature of an exported chain head covers."""
    return framed("audit head", tenant_id, str(seq), chain_hash, at)


def name_text(tenant_id: str, name: str) -> str:
    """What stands for the name of an erased person: nobody without the key can tell the name, or guess at it."""
    return framed("erased name", tenant_id, name)


# --- What a verification of the audit can find, and how it is told.

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


# --- Whether a tenant's audit chain is what was written: rows in, faults out.
# Two things are looked at. Each row's HMAC covers what it says, so that nobody without the key writes or changes one,
# whatever he does to the chain. The chain's hashes cover order and time; who recomputes all of it from some row on
# still differs from every signed head that was exported since, and a head behind the last row tells of a tail that was
# cut.

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


# --- Chain heads as they are kept outside the database: a signed JSON line each.


class ExportedHead(Frozen):
    """How far a tenant's chain went, and its hash there, at some time."""

    tenant: str = Field(max_length=63)
    seq: int = Field(ge=1, lt=2**62)
    hash: str = Field(pattern="^[0-9a-f]{64}$")
    at: str = Field(max_length=40)
    key: str = Field(max_length=32)
    """The id of the key that signed it."""
    hmac: str = Field(max_length=64)

    def line(self) -> str:
        """The line of the file."""
        return canonical_json(self.model_dump()) + "\n"

    @property
    def signature(self) -> str:
        """As audit rows have theirs."""
        return f"{self.key}:{self.hmac}"

    def is_signed_by(self, keyring: Keyring) -> bool:
        """Whether one of the keys signed it."""
        return keyring.verifies(head_text(self.tenant, self.seq, self.hash, self.at), self.signature)


def signed_head(keyring: Keyring, tenant_id: str, seq: int, chain_hash: str, at: str) -> ExportedHead:
    """A head to be exported."""
    key, _, mac = keyring.sign(head_text(tenant_id, seq, chain_hash, at)).partition(":")
    return ExportedHead(tenant=tenant_id, seq=seq, hash=chain_hash, at=at, key=key, hmac=mac)


def read_head(line: str) -> ExportedHead | None:
    """The head of a line, None where it is none: a line that a power cut left unfinished."""
    try:
        return ExportedHead.model_validate_json(line)
    except ValidationError:
        return None


def marks_of(
    heads: Iterable[ExportedHead], keyring: Keyring, tenant_id: str
) -> tuple[Mapping[int, frozenset[str]], list[Fault]]:
    """What the tenant's heads say of its chain: hashes by place; and those that nobody of ours signed."""
    said: dict[int, set[str]] = defaultdict(set)
    forged = []
    for head in heads:
        if head.tenant != tenant_id:
            continue
        if head.is_signed_by(keyring):
            said[head.seq].add(head.hash)
        else:
            kind = FaultKind.HEAD_FORGED if keyring.knows(head.signature) else FaultKind.KEY_UNKNOWN
            forged.append(Fault(head.seq, kind))
    return {seq: frozenset(hashes) for seq, hashes in said.items()}, forged


# --- Which bodies an erasure may have taken: its own signed rows said so before they went.
# Nothing that can be changed unseen is asked: neither whose a turn is now, nor which row a missing body names.

BEGUN = "user.erasure_begun"
"""Rows that name what goes with a person, their subject: the turns, and rows of others that name the person."""
DONE = "user.erased"
KEPT_KINDS = (BEGUN, DONE)
"""Rows about erasures: they hold ids and counts alone, account for what is gone, and never go themselves."""


@dataclass(frozen=True, slots=True)
class Erasures:
    """What a tenant's erasures have taken. Holds an id for each turn that went, so that no row is looked up twice."""

    _persons: dict[int, str] = field(default_factory=dict)
    _turns: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _rows: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    def add(self, audit_id: int, person: str, turns: Collection[str], rows: Collection[int]) -> None:
        """Take up a row of BEGUN whose signature and body are as they were written."""
        self._persons[audit_id] = person
        self._turns[person].update(turns)
        self._rows[person].update(rows)

    @property
    def known(self) -> frozenset[int]:
        """The rows that were taken up."""
        return frozenset(self._persons)

    def account_for(self, audit_id: int, entry: Entry, erased_by: int | None) -> bool:
        """Whether the body of this row went with the person whose erasure it names."""
        person = self._persons.get(erased_by) if erased_by is not None else None
        if person is None or entry.kind in KEPT_KINDS:
            return False
        return (
            person in (entry.actor, entry.subject)
            or entry.turn_id in self._turns.get(person, ())
            or audit_id in self._rows.get(person, ())
        )


# --- Whether every call that needed an approval and has begun had been given one: told by the audit, not by the
# approval. Whoever writes into the approvals themselves can make a call run. He cannot write the signed row of the
# decision.

DECIDED = "approval.decided"
OUTCOMES = (DECIDED, "approval.withdrawn", "approval.voided", "approval.expired", "approval.cancelled")
"""Kinds of rows that say what became of a request; the last of them stands."""
GIVEN = ("approve", "edit")
"""What a decision says that lets a call run."""


@dataclass(frozen=True, slots=True)
class Run:
    """A gated call that has begun, and the last that the audit says of its approval."""

    approval_id: str
    outcome: str | None
    """The kind of that row; None: there is none."""
    said: str | None
    """What was decided; None where the row's body was erased with its person, or it is no decision."""
    seq: int | None = None
    """The place of the approval's first row."""
    audit_id: int | None = None

    @property
    def was_allowed(self) -> bool:
        """Whether somebody had let it run, as far as can still be known."""
        return self.outcome == DECIDED and (self.said is None or self.said in GIVEN)


def undecided(runs: Iterable[Run]) -> list[Fault]:
    """A fault for each that nobody had allowed."""
    return [
        Fault(run.seq or 0, FaultKind.RAN_UNDECIDED, run.audit_id, run.approval_id)
        for run in runs
        if not run.was_allowed
    ]
