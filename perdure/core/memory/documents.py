"""Rules for writing documents: permissions, trust levels, types, paths, promotions and the content scan.

A write that no rule allows is refused.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from perdure.contracts.errors import CallerError
from perdure.contracts.memory import DEFAULT_LIMITS, MemoryLimits, Scope, Trust
from perdure.core.identity import OWN_CREDENTIAL, Credential

ADMIN = "admin"
POLICY_CODES = frozenset(
    {"memory_unauthenticated", "store_archived", "workspace_read_only", "store_not_yours", "type_not_allowed"}
)
"""The refusals that are reported as `memory.policy.denied`."""
USER_PREFERENCE = "user_preference"
CONVERSATION_NOTE = "conversation_note"
MAX_PATH_CHARACTERS = 200
PATTERN = r"^[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)*$"
_PATH = re.compile(PATTERN)
MAX_BYTES, LARGE_BYTES = DEFAULT_LIMITS.document_bytes, DEFAULT_LIMITS.write_bytes
MAX_LOG_LINES = 30
ENTROPY_CHARACTERS = 40
ENTROPY_BITS = 4.8
"""Bits per character, in a sequence of at least `ENTROPY_CHARACTERS` characters without a blank."""
_LOG_LINE = re.compile(
    r"[ \t]{0,8}(?:"
    r"\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d"
    r"|\[?\d\d/[A-Z][a-z]{2}/\d{4}:"
    r"|[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d"
    r"|[IWEF]\d{4} \d\d:\d\d:\d\d"
    r"|\d\d:\d\d:\d\d[.,]\d{3}"
    r"|\[?(?:TRACE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL|CRITICAL)\b"
    r"|\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3} - "
    r"|\{\"(?:ts|time|timestamp|level|severity|msg|message)\":"
    r"|(?:time|ts|level)=[\"\w]"
    r"|at [\w.$<>]{1,100}\("
    r")"
)
_RUN = re.compile(rf"[^\s\"'`,;()<>]{{{ENTROPY_CHARACTERS},}}")
# Cloud keys, tokens, private keys, database URLs with a password, kubeconfig. Every repetition in these patterns is
# bounded and followed by a character that it cannot match itself. The time for a hostile text of 100,000 bytes is
# therefore proportional to its length (a test measures it).
SECRETS: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {
        "cloud_key": re.compile(
            r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"
            r"|(?i:\baws_?secret_?(?:access_?)?key[\"']?\s{0,3}[=:]\s{0,3}[\"']?[A-Za-z0-9/+]{40})"
            r"|\bAIza[0-9A-Za-z_-]{35}"
            r"|\bya29\.[0-9A-Za-z_-]{20}"
            r"|\"private_key_id\"\s{0,5}:\s{0,5}\"[0-9a-f]{40}\""
            r"|(?i:\b(?:Account|SharedAccess)Key=[A-Za-z0-9+/]{40})"
        ),
        "token": re.compile(
            r"\bgh[pousr]_[A-Za-z0-9]{36}"
            r"|\bgithub_pat_[A-Za-z0-9_]{22}"
            r"|\bglpat-[A-Za-z0-9_-]{20}"
            r"|\bxox[abeoprs]-[A-Za-z0-9-]{10}"
            r"|\b[rs]k_live_[A-Za-z0-9]{16}"
            r"|\bsk-(?:ant-|proj-)?[A-Za-z0-9_-]{20}"
            r"|\bnpm_[A-Za-z0-9]{36}"
            r"|\bhf_[A-Za-z0-9]{30}"
            r"|\bSG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}"
            r"|\beyJ[A-Za-z0-9_-]{8,200}\.eyJ[A-Za-z0-9_-]{8}"
            r"|(?i:\bauthorization[\"']?\s{0,3}[=:]\s{0,3}[\"']?(?:bearer|basic)\s{1,3}[A-Za-z0-9._~+/-]{16})"
        ),
        "private_key": re.compile(r"-----BEGIN (?:[A-Z]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----"),
        "database_url": re.compile(
            r"(?i:\b(?:postgres(?:ql)?|mysql|mariadb|mongodb(?:\+srv)?|rediss?|amqps?|mssql|oracle|clickhouse)"
            r"(?:\+[a-z0-9]{1,20})?://[^\s:/@]{0,100}:[^\s/@]{1,200}@)"
        ),
        "kubeconfig": re.compile(
            r"\b(?:client-key|client-certificate|certificate-authority)-data\s{0,5}:\s{0,5}[A-Za-z0-9+/=]{20}"
        ),
    }
)
_SOME = r"(?:\w{1,20} ){0,3}"
_RULES = r"(?:instructions?|rules|prompts?|guidelines|directives|safeguards|polic(?:y|ies))"
_PHRASES = re.compile(
    r"\b(?:"
    rf"(?:ignore|disregard|forget|override|bypass) {_SOME}"
    rf"(?:previous|prior|above|earlier|preceding|all|any|your|system|safety) (?:\w{{1,20}} ){{0,2}}{_RULES}"
    r"|you are now (?:a|an|the|in|no longer|free)"
    r"|new system (?:prompt|instructions?|message)"
    rf"|(?:reveal|print|show|repeat|leak|output) {_SOME}(?:system|hidden|initial|developer) (?:prompt|instructions?)"
    r"|do not (?:tell|inform|alert|notify) the (?:user|operator|reviewer|human|administrator)"
    r"|without (?:asking|requesting|waiting)(?: for)? (?:\w{1,20} ){0,2}(?:approval|permission|confirmation)"
    r"|(?:auto|always|automatically) approve"
    r"|(?:jailbreak|developer mode|dan mode)"
    r"|pretend (?:that )?you (?:are|have) (?:\w{1,20} ){0,2}(?:no|not) "
    r")"
)
_TAGS = re.compile(
    r"</?\s{0,3}(?:system|assistant|instructions?|memory_context|untrusted_memory_candidates)\b"
    r"|<\|[a-z_]{1,30}\|>|\[/?inst\]|^#{1,4} ?system ?:",
    re.MULTILINE,
)
_NO_WORD = re.compile(r"\W+")


@dataclass(frozen=True, slots=True)
class Writer:
    """The writer of a document: a user, or an agent in a user's turn."""

    user_id: str | None
    roles: frozenset[str] = frozenset()
    is_agent: bool = False
    credential: Credential = OWN_CREDENTIAL
    """The credential with which the user signed in."""

    @property
    def is_admin(self) -> bool:
        """True for admins; never for an agent, whatever the roles of its user."""
        return ADMIN in self.roles and not self.is_agent


@dataclass(frozen=True, slots=True)
class Place:
    """The store, scope and owner of a document."""

    store: str
    """The slug of the store."""
    scope: Scope
    owner_id: str | None
    """The owner's user id; None in a workspace."""
    archived: bool = False


def write_refusal(writer: Writer, place: Place, document_type: str) -> CallerError | None:
    """Returns why this writer cannot write a document of this type here, or None."""
    if writer.user_id is None:
        return _write_denial("memory_unauthenticated", "The writer is not authenticated", 401)
    if place.archived:
        return _write_denial("store_archived", f"The store {place.store} is archived; reopen it before you write", 409)
    if place.scope is Scope.WORKSPACE and not writer.is_admin:
        if writer.is_agent:
            message = "Agents cannot write to the workspace; propose a promotion"
        else:
            message = "Only administrators can write to the workspace; propose a promotion"
        return _write_denial("workspace_read_only", message, 403)
    if place.scope is not Scope.WORKSPACE and place.owner_id != writer.user_id:
        return _write_denial("store_not_yours", "These documents belong to another user", 403)
    fault = type_fault(document_type)
    if fault is not None:
        return CallerError("document_type_unknown", fault)
    if writer.is_agent and place.scope is Scope.USER and document_type != USER_PREFERENCE:
        return _write_denial(
            "type_not_allowed", f"Agents can write only documents of the type {USER_PREFERENCE} for a user", 403
        )
    return None


def evidence_refusal(writer: Writer, evidence_summary: str, *, required: bool) -> CallerError | None:
    """Returns the refusal of an agent's write without the required evidence, or None."""
    if not required or not writer.is_agent or evidence_summary.strip():
        return None
    return CallerError(
        "evidence_missing", "`evidence_summary` is required for agents; describe the evidence for this text"
    )


def trust_of(writer: Writer, scope: Scope) -> Trust:
    """Returns the trust level of a version by its writer. An agent's version is a draft, even over a user's text."""
    if writer.is_agent:
        return Trust.AGENT_DRAFT
    return Trust.ADMIN_APPROVED if scope is Scope.WORKSPACE else Trust.USER_AUTHORED


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement of a patch."""

    find: str
    replace: str


def apply_edits(content: str, edits: Sequence[Edit]) -> str:
    """Returns `content` with the edits made one after the other.

    Raises: CallerError 422 `patch_mismatch` if a text to replace does not occur exactly once.
    """
    for number, edit in enumerate(edits):
        found = content.count(edit.find) if edit.find else 0
        if found != 1:
            message = f"The text to replace occurs {found} times; it must occur exactly once"
            raise CallerError("patch_mismatch", message, {"edit": number, "found": found})
        content = content.replace(edit.find, edit.replace)
    return content


def stale_refusal(expected_sha256: str, sha256: str) -> CallerError | None:
    """Returns the refusal of a change that is based on an old version, or None."""
    if expected_sha256 == sha256:
        return None
    message = "The document has changed since you read it; read it again"
    return CallerError("memory_conflict", message, {"sha256": sha256}, status=409)


def _write_denial(code: str, message: str, status: int) -> CallerError:
    return CallerError(code, message, status=status)


_BOOSTS = """
runbook 0.90
verification_checklist 0.85
incident_lesson 0.80
workspace_convention 0.75
service_context 0.70
tool_usage_lesson 0.65
user_preference 0.50
dream_summary 0.40
conversation_note 0.30
"""
"""The document types, and the weight of each in a ranking."""

TYPE_BOOSTS: Mapping[str, float] = MappingProxyType(
    {name: float(boost) for name, boost in (line.split() for line in _BOOSTS.split("\n") if line)}
)
DOCUMENT_TYPES = tuple(TYPE_BOOSTS)


def type_fault(document_type: str) -> str | None:
    """Returns why this is not a document type, with the known types, or None."""
    if document_type in TYPE_BOOSTS:
        return None
    return f"{document_type[:60]!r} is not a document type; use one of {', '.join(DOCUMENT_TYPES)}"


def path_refusal(path: str) -> CallerError | None:
    """Returns why this is not a valid path, or None. A path has lower-case words between slashes, for example
    `deploys/rollback.md`."""
    if len(path) <= MAX_PATH_CHARACTERS and _PATH.fullmatch(path) and ".." not in path:
        return None
    message = (
        "The path is invalid; use lower-case letters, digits, dots, underscores and dashes, with / between "
        f"parts, and at most {MAX_PATH_CHARACTERS} characters"
    )
    return CallerError("path_invalid", message)


class PromotionState(StrEnum):
    """The state of a promotion. All states except `pending` are final."""

    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"
    """The proposed text was redacted before the decision."""


class PromotionDecision(StrEnum):
    """The decisions that an admin can make."""

    APPROVE = "approve"
    REJECT = "reject"


def decision_refusal(
    *,
    decider: str,
    roles: Collection[str],
    proposer: str,
    state: PromotionState,
    seen_sha256: str,
    sha256: str,
    decision: PromotionDecision,
    comment: str,
    credential: Credential,
) -> CallerError | None:
    """Returns why this decision is refused, in the order of the contract: 403, 409 decided, 409 changed text, 422. An
    admin other than the proposer decides whether a text becomes shared memory."""
    if ADMIN not in roles:
        return CallerError("role_required", "This action requires the role admin", {"role": ADMIN}, status=403)
    if decider == proposer:
        return CallerError(
            "own_promotion", "You proposed this promotion; another administrator must decide on it", status=403
        )
    if credential.acts_for(proposer, is_admin=True):
        why = "The proposer may have created your token or session, so you cannot use it to decide on this promotion"
        return CallerError("own_promotion", why, {"reason": "credential_of_proposer"}, status=403)
    if state is not PromotionState.PENDING:
        message = f"The promotion is already {state.value}"
        return CallerError("promotion_decided", message, {"status": state.value}, status=409)
    if seen_sha256 != sha256:
        return CallerError(
            "memory_conflict",
            "The text has changed since you read it; read it again and send its current digest",
            {"sha256": sha256},
            status=409,
        )
    if decision is PromotionDecision.REJECT and not comment.strip():
        return CallerError("comment_required", "A rejection needs a comment")
    return None


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding of one rule."""

    rule: str
    message: str
    blocks: bool
    line: int | None = None

    def as_data(self) -> dict[str, str | int | bool | None]:
        """Returns the finding as data for an event or an answer."""
        return {"rule": self.rule, "message": self.message, "blocks": self.blocks, "line": self.line}


def scan_text(text: str, scope: Scope, limits: MemoryLimits = DEFAULT_LIMITS) -> tuple[Finding, ...]:
    """Returns all findings in `text`, blocking ones first. A write is preceded by a scan. It is pure, and its time is
    proportional to the length of the text. A finding contains its rule and line but never the text, because it is
    included in events and answers."""
    most_bytes = limits.document_bytes
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > most_bytes:  # A text over the limit is not scanned.
        return (Finding("too_large", f"the document has {size} bytes; the limit is {most_bytes}", blocks=True),)
    found = [*_blocking_findings(text, scope), *_warning_findings(text, size, limits.write_bytes)]
    return tuple(sorted(found, key=lambda finding: not finding.blocks))


def is_blocked(findings: tuple[Finding, ...]) -> bool:
    """Returns whether one of the findings blocks the write. Other findings are warnings."""
    return any(finding.blocks for finding in findings)


def _blocking_findings(text: str, scope: Scope) -> Iterator[Finding]:
    logs = sum(1 for line in text.split("\n") if _LOG_LINE.match(line))
    if logs > MAX_LOG_LINES:
        yield Finding("raw_logs", f"{logs} lines look like log output; describe what they mean instead", blocks=True)
    plain = _plain_text(text)
    for kind, offset in find_secrets(plain):
        yield Finding(f"secret.{kind}", "the text appears to contain a secret", True, plain.count("\n", 0, offset) + 1)
    if scope is not Scope.CONVERSATION:
        at = injection_at(plain)
        if at is not None:
            line = plain.count("\n", 0, at) + 1 if at else None
            yield Finding("injection", "the text contains instructions to a model", True, line)


def _warning_findings(text: str, size: int, large_bytes: int) -> Iterator[Finding]:
    if size > large_bytes:
        yield Finding(
            "large", f"the document has {size} bytes; only 1,200 characters of it are shown to a turn", blocks=False
        )
    for run in _RUN.finditer(text):
        if entropy_bits(run.group()) >= ENTROPY_BITS:
            line = text.count("\n", 0, run.start()) + 1
            yield Finding("high_entropy", "a character sequence looks random and may be a key", False, line)
            return


def entropy_bits(text: str) -> float:
    """Returns the Shannon entropy of a text, in bits per character."""
    shares = [count / len(text) for count in Counter(text).values()]
    return -sum(share * math.log2(share) for share in shares)


def _plain_text(text: str) -> str:
    """Returns `text` without compatibility forms and invisible characters, which hide words from a pattern."""
    shown = unicodedata.normalize("NFKC", text)
    return shown if shown.isascii() else "".join(each for each in shown if unicodedata.category(each) != "Cf")


def find_secrets(text: str) -> Iterator[tuple[str, int]]:
    """Yields (kind, offset) of the first secret of each kind."""
    for kind, pattern in SECRETS.items():
        found = pattern.search(text)
        if found is not None:
            yield kind, found.start()


def injection_at(text: str) -> int | None:
    """Returns the position of the first prompt injection: an offset for a tag, 0 for a phrase, None without one. Such
    text instructs a model instead of informing it. It is compared in lower case, with one space for all characters
    between words. The repetitions in the patterns are bounded like those of the secrets."""
    lowered = text.lower()
    tag = _TAGS.search(lowered)
    if tag is not None:
        return tag.start()
    return 0 if _PHRASES.search(_NO_WORD.sub(" ", lowered)) else None
