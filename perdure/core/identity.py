"""Credentials of callers: who created them and can use them, the secrets that sign them, and the codes and names of
registrations.

Invariants:
- A credential that another user created cannot decide on that user's requests, under any role or delegation.
- Credentials that one user created, directly or through others, count as one user in a vote.
- An unrecorded creator may be any administrator.
- The role `gateway` never decides, and a subject has the role `requester` only.
"""

import base64
import hashlib
import hmac
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from math import ceil

from perdure.contracts.errors import CallerError, LimitReached
from perdure.contracts.values import sha256_hex

UNKNOWN_CREATOR = "00000000-0000-0000-0000-000000000000"
"""The creator's id if the creator is not recorded."""
SIGNED_PREFIX = "eyJ"
"""The beginning of a signed token: its header is a JSON object."""
MIN_SECRET_CHARACTERS = 32
"""Minimum characters of a secret: 128 bits if they are hexadecimal."""
SECRET_ADVICE = f"must have at least {MIN_SECRET_CHARACTERS} characters; create one with `openssl rand -hex 32`"
"""Advice in the error about a rejected secret."""
REFRESH_GRACE = timedelta(seconds=10)
"""Time after its use in which a refresh token still returns its successor: for parallel tabs and lost responses."""
MAX_TRIES = 10
"""Number of wrong setup codes from one address, after which the address must wait."""
_FIRST_WAIT_SECONDS, _MAX_WAIT_SECONDS, _MAX_DOUBLINGS = 60, 900, 4
MAX_COUNTED = (4_000, 8_000)
"""Number of counts of a tenant above which a new address is counted with its network, and with all others. It bounds
what a stranger with many addresses can store."""
TRIES_KEPT = timedelta(days=1)
"""Time after the last wrong setup code from an address until its count is reset."""
DEVICE_MARK_CHARACTERS = 12
CODE_BYTES = 20
_GROUP_CHARACTERS = 4
_NEW_CODE_ADVICE = (
    "For a new one, start the stack again as before, such as with `make up`, or run `python -m perdure.apps.bootstrap` "
    "with the same settings"
)
"""Advice on a new setup code. A start with other settings, such as without its apps, would publish something else."""
GATEWAY = "gateway"
"""The role of programs that act on behalf of people whom they have authenticated. It cannot decide on anything."""
SUBJECT_ROLE = "requester"
"""The only role of a subject, on whose behalf a gateway acts."""
MAX_SUBJECT_CHARACTERS = 200
_SHOWN_SUBJECT = re.compile(r"[A-Za-z0-9._@+-]{1,40}")
_USER_NAME = re.compile(r"[a-z][a-z0-9._-]{0,62}")
_NAME_CLAIMS = ("preferred_username", "email", "sub")
"""The first claim that results in a valid name is used."""
_RESERVED = "erased-"


class SignInMethod(StrEnum):
    """The ways to sign in."""

    PASSWORD = "password"
    REGISTRATION = "registration"
    INVITATION = "invitation"
    TOKEN = "token"
    CHAT = "chat"
    """A token of a chat receiver."""
    LOCAL = "local"
    """A token that `perdure/apps/bootstrap.py` created for the embedded stack."""
    LINK = "link"
    """A link that the embedded stack printed."""
    OIDC = "oidc"
    UNKNOWN = "unknown"
    """A session that started before this was recorded."""


@dataclass(frozen=True, slots=True)
class Credential:
    """The credential with which a request was signed in."""

    how: SignInMethod = SignInMethod.UNKNOWN
    created_by: tuple[str, ...] = ()
    """User ids: the direct creator first, then the creators of the credential that it was created with. Empty if only
    the owner, or the operator of a local stack, created it."""
    invited_by: tuple[str, ...] = ()
    """The users whose invitation set the account's password. The inviter could have redeemed it; it is shown.
    What it excludes depends on how the account was opened (perdure/core/approvals/relations.py)."""

    @property
    def is_unknown(self) -> bool:
        """True if a creator is not recorded."""
        return UNKNOWN_CREATOR in self.created_by

    def handed_on(self, user_id: str) -> tuple[str, ...]:
        """Returns the creators of a credential that this user creates for another user while signed in with this
        one."""
        return (user_id, *(each for each in self.created_by if each != user_id))

    def people(self, user_id: str) -> frozenset[str]:
        """Returns all users that can act as this user with this credential."""
        return frozenset((user_id, *self.created_by))

    def acts_for(self, requester: str, *, is_admin: bool) -> bool:
        """Returns whether the requester may be the one who acts with it. An unrecorded creator may be any
        administrator."""
        return requester in self.created_by or (self.is_unknown and is_admin)

    def own_request(self) -> CallerError:
        """Returns the 403 error for a decision on a request of a user who created this credential."""
        if self.is_unknown:
            why = "It is unknown who created your token or session, and an administrator made the request"
        else:
            why = "The requester created your token or session"
        return CallerError(
            "own_request",
            f"{why}, so you cannot use it to decide on this request. Sign in with your own password or with your "
            "organization's identity provider, or use a token that another administrator created",
            {"signed_in": self.how.value, "reason": "credential_of_requester"},
            status=403,
        )


OWN_CREDENTIAL = Credential()
"""A credential that only its owner can hold."""


def sign_in_method(recorded: str) -> SignInMethod:
    """Returns the sign-in method of a record; UNKNOWN if it was not recorded."""
    try:
        return SignInMethod(recorded)
    except ValueError:
        return SignInMethod.UNKNOWN


def split_secrets(text: str) -> tuple[str, ...]:
    """Returns the secrets in `text`, separated by commas or line breaks; empty if one of them is too short. There are
    several during a rotation. Each must be long enough to be random."""
    parts = tuple(part.strip() for part in text.replace(",", "\n").splitlines() if part.strip())
    return parts if all(len(part) >= MIN_SECRET_CHARACTERS for part in parts) else ()


def key_id(purpose: str, secret: bytes) -> str:
    """Returns an id that identifies a secret among others of its purpose without revealing it: 8 hexadecimal
    characters."""
    return hashlib.sha256(f"perdure {purpose} key id\n".encode() + secret).hexdigest()[:8]


@dataclass(frozen=True, slots=True)
class AccessKey:
    """One secret. Its id identifies it without revealing anything about it."""

    id: str
    secret: bytes = field(repr=False)

    @classmethod
    def of(cls, text: str) -> "AccessKey":
        """Returns the key with this text as its secret."""
        secret = text.encode()
        return cls(key_id("access", secret), secret)

    def derive(self, purpose: str, *of: str) -> str:
        """Returns 256 bits that cannot be computed without the secret."""
        text = "\n".join((f"perdure {purpose}", *of))
        mac = hmac.new(self.secret, text.encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(mac).rstrip(b"=").decode()


@dataclass(frozen=True, slots=True)
class AccessKeys:
    """The keys of a deployment; the signing key is first. They sign access tokens. The first signs; every one verifies,
    so that secrets can be rotated. Other values that only the server can create (form tokens, a refresh token's
    successor) are derived from the same secrets. Each has its own purpose, so that none can be used as another."""

    keys: tuple[AccessKey, ...]

    @classmethod
    def of(cls, text: str) -> "AccessKeys":
        """Returns the keys in `text`, separated by commas or line breaks.

        Raises: CallerError `access_secret_weak` if there is none, or if one is too short to be random.
        """
        secrets = split_secrets(text)
        if not secrets:
            raise CallerError("access_secret_weak", f"The secret {SECRET_ADVICE}")
        return cls(tuple(map(AccessKey.of, secrets)))

    @property
    def newest(self) -> AccessKey:
        """The key that signs. All keys verify."""
        return self.keys[0]

    def find_key(self, key_id: object) -> AccessKey | None:
        """Returns the key with this id, or None."""
        return next((key for key in self.keys if key.id == key_id), None)

    def verifies(self, given: str, purpose: str, *of: str) -> bool:
        """Returns whether one of the keys derives `given` from these values."""
        return any(hmac.compare_digest(key.derive(purpose, *of).encode(), given.encode()) for key in self.keys)


@dataclass(frozen=True, slots=True)
class OperatorTokens:
    """The operator tokens of the deployment, stored as digests. If there are none, no token is an operator's."""

    digests: tuple[bytes, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, text: str) -> "OperatorTokens":
        """Returns the tokens in `text`, separated by commas; in a rotation, the new one is added before the old one is
        removed.

        Raises: CallerError `operator_token_weak` if one is too short to be random.
        """
        secrets = split_secrets(text)
        if not secrets:
            raise CallerError("operator_token_weak", f"The token {SECRET_ADVICE}")
        return cls(tuple(hashlib.sha256(each.encode()).digest() for each in secrets))

    def contains(self, token: str) -> bool:
        """Returns whether `token` is an operator token. Digests are compared in constant time."""
        given = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        return any(hmac.compare_digest(given, each) for each in self.digests)


class RefreshOutcome(StrEnum):
    """The outcome of a submitted refresh token."""

    ROTATE = "rotate"
    """Unused so far; one successor is issued."""
    REPEAT = "repeat"
    """Used a moment ago; the same successor is returned."""
    REUSED = "reused"
    """Used before, so another party has a copy; the whole session ends (RFC 9700, section 4.14)."""
    OVER = "over"
    """Expired, or its session has ended."""


@dataclass(frozen=True, slots=True)
class RefreshRecord:
    """The record of a refresh token."""

    now: datetime
    """The database's clock."""
    expires_at: datetime
    used_at: datetime | None
    session_ended: bool


def refresh_outcome(record: RefreshRecord) -> RefreshOutcome:
    """Returns the outcome of a token that is submitted now. A reuse in an ended session is not treated as a theft. Each
    token can be used once. A repeat within seconds gets the same response; a later one proves a theft."""
    if record.session_ended:
        return RefreshOutcome.OVER
    if record.used_at is not None:
        return RefreshOutcome.REPEAT if record.now - record.used_at <= REFRESH_GRACE else RefreshOutcome.REUSED
    return RefreshOutcome.OVER if record.expires_at <= record.now else RefreshOutcome.ROTATE


class CodeEnd(StrEnum):
    """The reasons why a setup code cannot be used."""

    USED = "used"
    EXPIRED = "expired"
    ADMINISTRATOR_EXISTS = "administrator_exists"
    """The tenant got an administrator without the code."""
    MISSING = "missing"
    """No code was created for the tenant, or its last administrator is gone."""

    def while_awaited(self) -> "CodeEnd":
        """Returns the reason to state while the tenant awaits its first user. The administrator of a used code was
        erased or lost the role, so only a new code helps."""
        return self if self is CodeEnd.EXPIRED else CodeEnd.MISSING


_END_MESSAGES = {
    CodeEnd.USED: "This setup code was already used; ask the administrator who registered with it for an invitation",
    CodeEnd.EXPIRED: f"This setup code has expired. {_NEW_CODE_ADVICE}",
    CodeEnd.ADMINISTRATOR_EXISTS: "This setup code has ended, because the tenant has an administrator; ask an "
    "administrator for an invitation",
    CodeEnd.MISSING: f"There is no setup code. {_NEW_CODE_ADVICE}",
}


@dataclass(frozen=True, slots=True)
class SetupCode:
    """The stored state of a code. With it, the first user of a tenant registers as its administrator."""

    sha256: str
    end: CodeEnd | None = None
    """The reason why it cannot be used; None if it can."""
    ended_at: datetime | None = None

    def matches(self, given: str) -> bool:
        """Returns whether it was made from this text."""
        return hmac.compare_digest(self.sha256, code_sha256(given))


def counted_under(names: Sequence[str], counted: Collection[str], number: int) -> str:
    """Returns the name under which a wrong setup code is counted. `names` are those of the address, the narrowest
    first; `counted` are those of them that have a count, and `number` is the number of all counts of the tenant."""
    for name, limit in zip(names, MAX_COUNTED, strict=False):
        if name in counted or number < limit:
            return name
    return names[-1]


def seconds_to_wait(wrong_tries: int) -> int:
    """Returns the seconds that an address must wait after this number of wrong setup codes. Each tenth one starts a
    wait: a minute, then twice the previous one, at most 15 minutes."""
    waits, tries_since = divmod(wrong_tries, MAX_TRIES)
    if tries_since or not waits:
        return 0
    return int(min(_MAX_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2 ** min(waits - 1, _MAX_DOUBLINGS)))


@dataclass(frozen=True, slots=True)
class WrongTries:
    """The wrong setup codes that came from one address."""

    number: int = 0
    seconds_ago: float = 0.0
    """Seconds since the last one."""

    def refusal(self) -> LimitReached | None:
        """Returns the error for a further try, also with the right code, while the address must wait; else None."""
        # If the clock was set back, no wait is longer than a full one from now.
        left = seconds_to_wait(self.number) - max(0.0, self.seconds_ago)
        if left <= 0:
            return None
        seconds = ceil(left)
        return LimitReached(
            "too_many_tries",
            f"Too many wrong setup codes came from your address or its network; retry in {seconds} s. The log of "
            "the server, and the terminal of `perdure up`, state how to register without waiting",
            {"retry_after_seconds": seconds, "tries": self.number},
        )


def device_mark(tenant_id: str, user_id: str) -> str:
    """Returns the part of a device cookie's name that stands for its account. A query computes the same
    (perdure/store/identity/origins.py)."""
    return sha256_hex(f"{tenant_id}/{user_id}")[:DEVICE_MARK_CHARACTERS]


def format_code(bits: bytes) -> str:
    """Returns these 160 bits as 8 groups of 4 base32 characters."""
    text = base64.b32encode(bits).decode()
    return "-".join(text[at : at + _GROUP_CHARACTERS] for at in range(0, len(text), _GROUP_CHARACTERS))


def code_sha256(code: str) -> str:
    """Returns the stored hash of a code; case, spaces and dashes are ignored."""
    return sha256_hex("".join(code.upper().replace("-", "").split()))


def code_refusal(given: str, stored: SetupCode | None) -> CallerError | None:
    """Returns the error for an invalid code, or None if it is valid. A caller without the code learns nothing about it;
    a caller with it learns why it is invalid. `details.reason` is `wrong` or a `CodeEnd`."""
    if not given.strip():
        why = "The first user registers with the setup code that the start of the stack (such as `make up`) or "
        why += "`python -m perdure.apps.bootstrap` printed; send it"
        return CallerError("setup_code_needed", why, status=401)
    if stored is None or not stored.matches(given):
        details: dict[str, object] = {"reason": "wrong"}
        why = f"This setup code is wrong or was replaced. {_NEW_CODE_ADVICE}"
    elif stored.end is None:
        return None
    else:
        details = {"reason": stored.end.value, "ended_at": stored.ended_at}
        why = _END_MESSAGES[stored.end]
    return CallerError("setup_code_invalid", why, details, status=403)


def is_subject(text: str) -> bool:
    """Returns whether a text can identify a person: short, not blank, and without characters that cannot be seen. Two
    subjects that look the same would be two users."""
    return len(text) <= MAX_SUBJECT_CHARACTERS and text.isprintable() and bool(text.strip())


def subject_name(gateway: str, subject: str) -> str:
    """Returns the user name of a gateway's subject, at most 121 characters: the subject itself, or its readable part
    and a hash. The colon keeps it different from the names that users can choose. It is JSON without escapes."""
    if _SHOWN_SUBJECT.fullmatch(subject):
        return f"{gateway}:{subject}"
    readable = re.sub(r"[^A-Za-z0-9._@+-]+", "-", subject)[:40].strip("-")
    return f"{gateway}:{readable}~{sha256_hex(subject)[:16]}"


def require_separate_gateway(roles: Collection[str]) -> None:
    """Raises: CallerError 422 `roles_conflict` for an administrator that is a gateway. It could create the token of a
    reviewer, and decide on the requests of its subjects with it."""
    if GATEWAY in roles and "admin" in roles:
        raise CallerError(
            "roles_conflict",
            "A user cannot have both roles gateway and admin; use another user for the gateway",
            {"roles": sorted(roles)},
            status=422,
        )


def gateway_refusal() -> CallerError:
    """Returns the error for a decision that a gateway sends. It cannot prove that a person has made it."""
    return CallerError(
        "gateway_cannot_decide",
        "A user with the role gateway cannot decide, settle or delegate, also not on behalf of others; reviewers sign "
        "in themselves",
        status=403,
    )


def name_from(claims: Mapping[str, object]) -> str | None:
    """Returns a valid user name from the provider's claims, or None if no claim results in one. The name is for the
    first sign-in with an external provider."""
    for claim in _NAME_CLAIMS:
        given = claims.get(claim)
        if not isinstance(given, str):
            continue
        plain = unicodedata.normalize("NFKD", given.partition("@")[0]).encode("ascii", "ignore").decode().lower()
        name = re.sub(r"[^a-z0-9._-]+", "-", plain).strip("-._")[:63]
        if _USER_NAME.fullmatch(name) and not name.startswith(_RESERVED):
            return name
    return None


def display_name_from(claims: Mapping[str, object]) -> str:
    """Returns the user's full name; empty if the provider does not send one."""
    given = claims.get("name")
    return " ".join(given.split())[:100] if isinstance(given, str) and given.isprintable() else ""
