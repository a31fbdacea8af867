"""Signatures of audit rows and exported chain heads, and the verification of a tenant's audit chain.

The signatures are HMAC-SHA256 with keys that are never in the database. A signature is `<key id>:<hex>`, so that keys
can be rotated: the first key signs, every key verifies.
"""

import hashlib
import hmac
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from pydantic import ConfigDict, Field, ValidationError

from perdure.contracts.errors import CallerError
from perdure.contracts.values import Frozen, canonical_json
from perdure.core.identity import SECRET_ADVICE, key_id, split_secrets

MAX_FAULTS = 100
"""Maximum number of reported faults; all are counted, by kind."""
GENESIS = "0" * 64
"""`prev` of a tenant's first row."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
ERASURE_BEGUN = "user.erasure_begun"
"""Rows that list what is erased with a user, their subject: the turns, and the rows of others that name the user."""
ERASURE_DONE = "user.erased"
KEPT_KINDS = (ERASURE_BEGUN, ERASURE_DONE)
"""Rows about erasures. They contain only ids and counts, account for missing bodies, and are never erased."""
DECISION_KIND = "approval.decided"
OUTCOME_KINDS = (
    DECISION_KIND,
    *("approval.withdrawn", "approval.voided", "approval.reissued", "approval.expired", "approval.cancelled"),
)
"""Kinds of rows with the outcome of a request, or with the end of an earlier one; the last one applies."""
ALLOWING_DECISIONS = ("approve", "edit")
"""Decisions that allow a call to run."""


def frame_fields(*fields: str | None) -> str:
    """Returns `fields` as one unambiguous text: each field is preceded by its length in bytes. The SQL function
    `audit_hash` uses the same format."""
    return "".join("-," if each is None else f"{len(each.encode())}:{each}," for each in fields)


@dataclass(frozen=True, slots=True)
class AuditKey:
    """One key. Its id identifies it without revealing anything about the secret."""

    id: str
    secret: bytes = field(repr=False)

    @classmethod
    def of(cls, text: str) -> "AuditKey":
        """Returns the key with this text as its secret."""
        secret = text.encode()
        return cls(key_id("audit", secret), secret)

    def mac(self, text: str) -> str:
        """Returns the signature of `text` without the key's id."""
        return hmac.new(self.secret, text.encode(), hashlib.sha256).hexdigest()

    def webhook_secret(self, tenant_id: str, webhook_id: str) -> str:
        """Returns the secret with which the receiver of this webhook verifies. It is not stored anywhere."""
        return self.mac(frame_fields("webhook secret", tenant_id, webhook_id))


@dataclass(frozen=True, slots=True)
class Keyring:
    """The keys of a deployment; the signing key is first."""

    keys: tuple[AuditKey, ...]

    @classmethod
    def of(cls, text: str) -> "Keyring":
        """Returns the keys in `text`, separated by commas or line breaks.

        Raises: CallerError `audit_key_weak` if there is none, or if one is too short to be random.
        """
        secrets = split_secrets(text)
        if not secrets:
            raise CallerError("audit_key_weak", f"The audit key {SECRET_ADVICE}")
        return cls(tuple(map(AuditKey.of, secrets)))

    def sign(self, text: str) -> str:
        """Returns the signature of `text` by the newest key."""
        return f"{self.keys[0].id}:{self.keys[0].mac(text)}"

    def signatures(self, text: str) -> list[str]:
        """Returns the signature of `text` by every key, newest first, to look up a value that any of them signed."""
        return [f"{key.id}:{key.mac(text)}" for key in self.keys]

    def find_key(self, key_id: str) -> AuditKey | None:
        """Returns the key with this id, or None."""
        return next((key for key in self.keys if key.id == key_id), None)

    def has_signer(self, signature: str) -> bool:
        """Returns whether a key of this keyring made the signature, by its key id."""
        return self.find_key(signer_id(signature)) is not None

    def verifies(self, text: str, signature: str) -> bool:
        """Returns whether one of the keys signed `text`."""
        key_id, _, mac = signature.partition(":")
        return any(key.id == key_id and hmac.compare_digest(key.mac(text).encode(), mac.encode()) for key in self.keys)


def signer_id(signature: str) -> str:
    """Returns the part of a signature before the colon: the id of the key that made it."""
    return signature.partition(":")[0]


def row_text(tenant_id: str, kind: str, subject: str, actor: str | None, turn_id: str | None, body_digest: str) -> str:
    """Returns the text that the signature of an audit row covers. The chain covers the time and the position."""
    return frame_fields("audit row", tenant_id, kind, subject, actor, turn_id, body_digest)


def head_text(tenant_id: str, seq: int, chain_hash: str, at: str) -> str:
    """Returns the text that the signature of an exported chain head covers."""
    return frame_fields("audit head", tenant_id, str(seq), chain_hash, at)


def name_text(tenant_id: str, name: str) -> str:
    """Returns the text whose signature replaces the name of an erased user. Without the key the name can be neither
    read nor guessed."""
    return frame_fields("erased name", tenant_id, name)


class FaultKind(StrEnum):
    """The kind of a fault in a row, a link or a head."""

    LINK_MISSING = "link_missing"
    """A number of the chain is missing."""
    LINK_BROKEN = "link_broken"
    """A link does not contain the hash of the link before it."""
    ROW_MISSING = "row_missing"
    ROW_CHANGED = "row_changed"
    """The row, or its link, does not result in the link's hash."""
    ROW_UNCHAINED = "row_unchained"
    """A row without a link was never committed by the program."""
    ROW_REPEATED = "row_repeated"
    """Two rows share a salted digest: one is a copy."""
    SIGNATURE_WRONG = "signature_wrong"
    SIGNATURE_MISSING = "signature_missing"
    KEY_UNKNOWN = "key_unknown"
    """Signed by a key that this deployment does not have; keep old keys after the new one."""
    BODY_MISSING = "body_missing"
    """A body is missing, and no erasure accounts for it."""
    BODY_CHANGED = "body_changed"
    HEAD_MOVED = "head_moved"
    """The row with the chain's head does not name its last link."""
    HEAD_DIFFERS = "head_differs"
    """The chain's hash differs from the exported one."""
    HEAD_FORGED = "head_forged"
    """An exported head whose signature is wrong."""
    TAIL_CUT = "tail_cut"
    """An exported head is beyond the last link."""
    RAN_UNDECIDED = "ran_undecided"
    """A call that needed an approval has started, and no row records an approval before that."""


HEAD_FAULTS = frozenset({FaultKind.HEAD_MOVED, FaultKind.HEAD_DIFFERS, FaultKind.HEAD_FORGED, FaultKind.TAIL_CUT})


@dataclass(frozen=True, slots=True)
class ChainFault:
    """A difference from what was written; `seq` is its position in the chain, or 0 if it has none."""

    seq: int
    kind: FaultKind
    audit_id: int | None = None
    subject: str | None = None
    """The subject if it is not a row: an approval's id."""
    key_id: str | None = None
    """The key that signed it, if this deployment does not have that key."""


def sample_of_faults(faults: Iterable[ChainFault], limit: int) -> tuple[ChainFault, ...]:
    """Returns at most `limit` faults. Each kind gets a share, so that many faults of one kind do not hide another.
    Faults of heads come first, then the others by position."""
    by_kind: defaultdict[FaultKind, list[ChainFault]] = defaultdict(list)
    for fault in sorted(faults, key=lambda fault: fault.seq):
        by_kind[fault.kind].append(fault)
    turns = sorted((turn, kind) for kind, found in by_kind.items() for turn in range(len(found)))
    sample = [by_kind[kind][turn] for turn, kind in turns[:limit]]
    return tuple(sorted(sample, key=lambda fault: (fault.kind not in HEAD_FAULTS, fault.seq, fault.kind)))


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
    """A position in the chain with the row that it names."""

    seq: int
    audit_id: int
    prev: str
    hash: str
    entry: Entry | None
    """The row's entry; None if the row does not exist."""
    found_digest: str | None = None
    """The digest of the stored body; None if there is none."""
    erased: bool = False
    """True if an erasure accounts for a missing body."""


@dataclass(frozen=True, slots=True)
class Head:
    """The last link of a chain."""

    seq: int
    hash: str


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a verification."""

    rows: int
    head: Head
    heads_checked: int
    heads_found: int
    """Number of exported heads, including those whose signature cannot be verified."""
    erased: int
    """Number of rows whose body was erased with its user."""
    faults: tuple[ChainFault, ...]
    """A sample of each kind; faults of heads come first."""
    faults_found: int
    faults_by_kind: Mapping[FaultKind, int]
    keys_unknown: Mapping[str, int]
    """Number of rows and heads by the id of a key that signed them and that this deployment does not have."""

    @property
    def ok(self) -> bool:
        """True if no fault was found."""
        return not self.faults_found


def link_hash(seq: int, prev: str, entry: Entry) -> str:
    """Returns the hash of a link, as the database computes it at commit."""
    text = frame_fields(
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
    """A verification in progress. It stores the marks and a limited number of faults of each kind, but no rows: links
    are fed in order, so its memory does not grow with the chain.

    Rows go in, faults come out. There are two checks. Each row's HMAC covers its content, so that only a holder of the
    key can write or change one, whatever happens to the chain. The chain's hashes cover order and time. A chain that is
    recomputed from some row onwards differs from every signed head that was exported after that row. An exported head
    beyond the last row proves that the tail was cut off.
    """

    tenant_id: str
    keyring: Keyring
    marks: Mapping[int, frozenset[str]]
    """The hashes by position that signed heads and seals name."""
    unsigned_through: int = 0
    """Rows up to this position are older than signing; a seal vouches for them."""
    most_faults: int = MAX_FAULTS
    heads_found: int = 0
    last: Head = Head(0, GENESIS)
    rows: int = 0
    erased: int = 0
    marks_seen: int = 0
    faults: list[ChainFault] = field(default_factory=list)
    counts: Counter[FaultKind] = field(default_factory=Counter)
    keys_unknown: Counter[str] = field(default_factory=Counter)

    def feed(self, links: Iterable[Link]) -> None:
        """Checks the next links, in order."""
        for link in links:
            if link.seq != self.last.seq + 1:
                self._add_fault(self.last.seq + 1, FaultKind.LINK_MISSING)
            elif link.prev != self.last.hash:
                self._add_fault(link.seq, FaultKind.LINK_BROKEN, link.audit_id)
            self._check_link(link)
            if link.seq in self.marks:
                self.marks_seen += 1
                if self.marks[link.seq] != {link.hash}:
                    self._add_fault(link.seq, FaultKind.HEAD_DIFFERS, link.audit_id)
            self.rows += 1
            self.last = Head(link.seq, link.hash)

    def add_faults(self, faults: Iterable[ChainFault]) -> None:
        """Adds faults that were found elsewhere."""
        for fault in faults:
            self._add(fault)

    def report(self, head: Head) -> Report:
        """Finishes the verification; `head` is the last link according to the database."""
        if head != self.last:
            self._add_fault(head.seq, FaultKind.HEAD_MOVED)
        for seq in sorted(self.marks):
            if seq > self.last.seq:
                self.marks_seen += 1
                self._add_fault(seq, FaultKind.TAIL_CUT)
        return Report(
            self.rows,
            self.last,
            self.marks_seen,
            self.heads_found,
            self.erased,
            sample_of_faults(self.faults, self.most_faults),
            self.counts.total(),
            dict(sorted(self.counts.items())),
            dict(sorted(self.keys_unknown.items())),
        )

    def _check_link(self, link: Link) -> None:
        entry = link.entry
        if entry is None:
            self._add_fault(link.seq, FaultKind.ROW_MISSING, link.audit_id)
            return
        if link_hash(link.seq, link.prev, entry) != link.hash:
            self._add_fault(link.seq, FaultKind.ROW_CHANGED, link.audit_id)
        if not entry.signature:
            if link.seq > self.unsigned_through:
                self._add_fault(link.seq, FaultKind.SIGNATURE_MISSING, link.audit_id)
        elif not self.keyring.has_signer(entry.signature):
            self._add(ChainFault(link.seq, FaultKind.KEY_UNKNOWN, link.audit_id, key_id=signer_id(entry.signature)))
        elif not self.keyring.verifies(
            row_text(self.tenant_id, entry.kind, entry.subject, entry.actor, entry.turn_id, entry.body_digest),
            entry.signature,
        ):
            self._add_fault(link.seq, FaultKind.SIGNATURE_WRONG, link.audit_id)
        if link.found_digest is None:
            self.erased += link.erased
            if not link.erased:
                self._add_fault(link.seq, FaultKind.BODY_MISSING, link.audit_id)
        elif link.found_digest != entry.body_digest:
            self._add_fault(link.seq, FaultKind.BODY_CHANGED, link.audit_id)

    def _add_fault(self, seq: int, kind: FaultKind, audit_id: int | None = None) -> None:
        self._add(ChainFault(seq, kind, audit_id))

    def _add(self, fault: ChainFault) -> None:
        self.counts[fault.kind] += 1
        if fault.key_id is not None:
            self.keys_unknown[fault.key_id] += 1
        if self.counts[fault.kind] <= self.most_faults:
            self.faults.append(fault)


class ExportedHead(Frozen):
    """The length of a tenant's chain at some time, and its hash there. Heads are stored outside the database: one
    signed JSON line each."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    tenant: str = Field(max_length=63)
    """The tenant's id."""
    seq: int = Field(ge=1, lt=2**62)
    """The rows of the chain."""
    hash: str = Field(pattern="^[0-9a-f]{64}$")
    """The hash of the chain at the last row: SHA-256 in hex."""
    at: str = Field(max_length=40)
    """When it was exported (ISO 8601)."""
    key: str = Field(max_length=32)
    """The id of the key that signed it."""
    hmac: str = Field(max_length=64)
    """HMAC-SHA-256 of tenant, seq, hash and time by that key."""

    def line(self) -> str:
        """Returns the head as one line of JSON, with its line break."""
        return canonical_json(self.model_dump()) + "\n"

    @property
    def signature(self) -> str:
        """The signature in the format of audit rows."""
        return f"{self.key}:{self.hmac}"

    def is_signed_by(self, keyring: Keyring) -> bool:
        """Returns whether one of the keys signed it."""
        return keyring.verifies(head_text(self.tenant, self.seq, self.hash, self.at), self.signature)


def signed_head(keyring: Keyring, tenant_id: str, seq: int, chain_hash: str, at: str) -> ExportedHead:
    """Returns the head of a tenant's chain for export, signed by the newest key."""
    key, _, mac = keyring.sign(head_text(tenant_id, seq, chain_hash, at)).partition(":")
    return ExportedHead(tenant=tenant_id, seq=seq, hash=chain_hash, at=at, key=key, hmac=mac)


def read_head(line: str) -> ExportedHead | None:
    """Returns the head in a line, or None if it is invalid, such as a line that a power cut left unfinished."""
    try:
        return ExportedHead.model_validate_json(line)
    except ValidationError:
        return None


def marks_of(
    heads: Iterable[ExportedHead], keyring: Keyring, tenant_id: str
) -> tuple[Mapping[int, frozenset[str]], list[ChainFault]]:
    """Returns the hashes by position in the tenant's heads, and a fault for each head that no known key signed."""
    by_seq: dict[int, set[str]] = defaultdict(set)
    forged = []
    for head in heads:
        if head.tenant != tenant_id:
            continue
        if head.is_signed_by(keyring):
            by_seq[head.seq].add(head.hash)
        elif keyring.has_signer(head.signature):
            forged.append(ChainFault(head.seq, FaultKind.HEAD_FORGED))
        else:
            forged.append(ChainFault(head.seq, FaultKind.KEY_UNKNOWN, key_id=head.key))
    return {seq: frozenset(hashes) for seq, hashes in by_seq.items()}, forged


@dataclass(frozen=True, slots=True)
class Erasures:
    """Texts that a tenant's erasures removed. Stores an id for each erased turn, so that no row is read twice. Signed
    rows record an erasure before the bodies are deleted. Data that can be changed without detection is not used:
    neither the present owner of a turn, nor the row that a missing body names."""

    _persons: dict[int, str] = field(default_factory=dict)
    _turns: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _rows: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    def add(self, audit_id: int, user_id: str, turns: Collection[str], rows: Collection[int]) -> None:
        """Adds a row of ERASURE_BEGUN whose signature and body were verified."""
        self._persons[audit_id] = user_id
        self._turns[user_id].update(turns)
        self._rows[user_id].update(rows)

    @property
    def known(self) -> frozenset[int]:
        """The rows that were added."""
        return frozenset(self._persons)

    def account_for(self, audit_id: int, entry: Entry, erased_by: int | None) -> bool:
        """Returns whether the body of this row was removed by the user erasure that it names."""
        person = self._persons.get(erased_by) if erased_by is not None else None
        if person is None or entry.kind in KEPT_KINDS:
            return False
        return (
            person in (entry.actor, entry.subject)
            or entry.turn_id in self._turns.get(person, ())
            or audit_id in self._rows.get(person, ())
        )


@dataclass(frozen=True, slots=True)
class Run:
    """A gated call that has started, and the last audit row about its approval."""

    approval_id: str
    outcome: str | None
    """The kind of that row; None if there is none."""
    decision: str | None
    """The decision; None if the row's body was erased with its user, or if the row is not a decision."""
    seq: int | None = None
    """The position of the approval's first row."""
    audit_id: int | None = None

    @property
    def was_allowed(self) -> bool:
        """True if a reviewer allowed it, as far as can still be determined."""
        return self.outcome == DECISION_KIND and (self.decision is None or self.decision in ALLOWING_DECISIONS)


def find_undecided(runs: Iterable[Run]) -> list[ChainFault]:
    """Returns a fault for each run that no reviewer allowed. This proves from the audit, and not from the approval,
    that every started call that needed an approval had one. An attacker who can write to the approvals tables can make
    a call run, but cannot write the signed row of the decision."""
    return [
        ChainFault(run.seq or 0, FaultKind.RAN_UNDECIDED, run.audit_id, run.approval_id)
        for run in runs
        if not run.was_allowed
    ]
