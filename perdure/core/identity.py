"""How a caller is signed in, and who else may hold the credential: whoever created it can act by it.

Invariants:
- A credential that another person created decides nothing that this person requested, in no seat.
- Credentials that one person created, directly or through others, count as one person in a vote.
- A creator that is not on record may be any administrator.
"""

import base64
import hashlib
import hmac
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from perdure.contracts.errors import CallerError
from perdure.contracts.values import sha256_hex

UNKNOWN = "00000000-0000-0000-0000-000000000000"
"""Stands for a creator that is not on record."""


class How(StrEnum):
    """The ways to sign in."""

    PASSWORD = "password"
    REGISTRATION = "registration"
    INVITATION = "invitation"
    TOKEN = "token"
    CHAT = "chat"
    """A token of a chat's receiver."""
    LOCAL = "local"
    """A token that `perdure/apps/bootstrap.py` made for the embedded stack."""
    LINK = "link"
    """A link that the embedded stack printed."""
    OIDC = "oidc"
    UNKNOWN = "unknown"
    """A session that was opened before this was recorded."""


@dataclass(frozen=True, slots=True)
class Credential:
    """What a request was signed in by."""

    how: How = How.UNKNOWN
    created_by: tuple[str, ...] = ()
    """User ids: the direct creator first, then the creators of the credential that it was created with. Empty: only
    its owner, or the operator of a local stack."""
    invited_by: tuple[str, ...] = ()
    """Whose invitation set the password of the account. The inviter could have redeemed it: it is shown, and no bar."""

    @property
    def is_unknown(self) -> bool:
        """Whether a creator is not on record."""
        return UNKNOWN in self.created_by

    def handed_on(self, user_id: str) -> tuple[str, ...]:
        """The creators of a credential that this user creates for another user while signed in by this one."""
        return (user_id, *(each for each in self.created_by if each != user_id))

    def people(self, user_id: str) -> frozenset[str]:
        """Everybody who may act as this user by this credential."""
        return frozenset((user_id, *self.created_by))

    def acts_for(self, requester: str, *, is_admin: bool) -> bool:
        """Whether the requester, who is an administrator or not, may be the one who acts by it."""
        return requester in self.created_by or (self.is_unknown and is_admin)

    def own_request(self) -> CallerError:
        """Why it does not decide on a request of one of its creators."""
        if self.is_unknown:
            why = "It is not on record who created the token or session that you use, and an administrator requested it"
        else:
            why = "The requester created the token or session that you use"
        return CallerError(
            "own_request",
            f"{why}, so it cannot decide on this request. Sign in with a password of your own or at your "
            "organization's provider, or use a token that another administrator created",
            {"signed_in": self.how.value, "reason": "credential_of_requester"},
            status=403,
        )


OWN = Credential()
"""One that nobody but its owner can hold."""


# --- Secrets as an operator writes them: one, or several while one follows another, each long enough to be random.

SHORTEST_SECRET = 32
"""In characters: 128 bits where they are hexadecimal."""
ADVICE = f"has {SHORTEST_SECRET} characters at least: `openssl rand -hex 32`"
"""What a secret that is refused is told."""


def secrets_in(text: str) -> tuple[str, ...]:
    """The secrets in `text`, separated by commas or line ends; none where one of them is too short."""
    parts = tuple(part.strip() for part in text.replace(",", "\n").splitlines() if part.strip())
    return parts if all(len(part) >= SHORTEST_SECRET for part in parts) else ()


def key_id(purpose: str, secret: bytes) -> str:
    """What tells a secret apart from others of its purpose, and tells nothing of it: 8 hexadecimal characters."""
    return hashlib.sha256(f"perdure {purpose} key id\n".encode() + secret).hexdigest()[:8]


# --- The secrets that access tokens are signed with.
# The first signs; every one verifies, so that it can be followed.
#
# Other values that only the server can make (form tokens, a refresh token's successor) come from the same secrets, each
# for its own purpose: none of them can stand in for another.


@dataclass(frozen=True, slots=True)
class AccessKey:
    """One secret; its id tells it apart and tells nothing of it."""

    id: str
    secret: bytes = field(repr=False)

    @classmethod
    def of(cls, text: str) -> "AccessKey":
        """The key of this text."""
        secret = text.encode()
        return cls(key_id("access", secret), secret)

    def derived(self, purpose: str, *of: str) -> str:
        """256 bits that whoever lacks the secret cannot know."""
        text = "\n".join((f"perdure {purpose}", *of))
        mac = hmac.new(self.secret, text.encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(mac).rstrip(b"=").decode()


@dataclass(frozen=True, slots=True)
class AccessKeys:
    """The keys of a deployment, the one that signs first."""

    keys: tuple[AccessKey, ...]

    @classmethod
    def of(cls, text: str) -> "AccessKeys":
        """The keys in `text`, separated by commas or line ends.

        Raises: CallerError `access_secret_weak` where there is none, or one is too short to be random.
        """
        secrets = secrets_in(text)
        if not secrets:
            raise CallerError("access_secret_weak", f"a secret {ADVICE}")
        return cls(tuple(map(AccessKey.of, secrets)))

    @property
    def newest(self) -> AccessKey:
        """The one that signs."""
        return self.keys[0]

    def named(self, key_id: object) -> AccessKey | None:
        """The key of this id."""
        return next((key for key in self.keys if key.id == key_id), None)

    def knows(self, given: str, purpose: str, *of: str) -> bool:
        """Whether one of the keys derives `given` from this."""
        return any(hmac.compare_digest(key.derived(purpose, *of).encode(), given.encode()) for key in self.keys)


@dataclass(frozen=True, slots=True)
class OperatorTokens:
    """The tokens of whoever runs the deployment, kept as digests. Without one, no token is an operator's."""

    digests: tuple[bytes, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, text: str) -> "OperatorTokens":
        """The tokens in `text`, separated by commas: a new one is added before the old one is taken away.

        Raises: CallerError `operator_token_weak` if one is too short to be random.
        """
        secrets = secrets_in(text)
        if not secrets:
            raise CallerError("operator_token_weak", f"a token {ADVICE}")
        return cls(tuple(hashlib.sha256(each.encode()).digest() for each in secrets))

    def know(self, token: str) -> bool:
        """Whether this is one of them; digests are compared, in constant time."""
        given = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        return any(hmac.compare_digest(given, each) for each in self.digests)


# --- What a refresh token is good for: once; a moment longer for the same answer; after that it betrays a theft.

GRACE = timedelta(seconds=10)
"""For two tabs at once, and for an answer that was lost on the way."""


class Refresh(StrEnum):
    """What becomes of a refresh token that is handed in."""

    ROTATE = "rotate"
    """It is used up, and has one successor."""
    REPEAT = "repeat"
    """It was used a moment ago: the same successor again."""
    BETRAYED = "betrayed"
    """It was used before, so somebody else has a copy: the whole session ends (RFC 9700, section 4.14)."""
    OVER = "over"
    """It is too old, or its session has ended."""


@dataclass(frozen=True, slots=True)
class RefreshFacts:
    """What the record says of a refresh token."""

    now: datetime
    """The database's clock."""
    expires_at: datetime
    used_at: datetime | None
    session_ended: bool


def outcome(facts: RefreshFacts) -> Refresh:
    """Of a token that is handed in now. Of a session that has ended nothing more can be betrayed."""
    if facts.session_ended:
        return Refresh.OVER
    if facts.used_at is not None:
        return Refresh.REPEAT if facts.now - facts.used_at <= GRACE else Refresh.BETRAYED
    return Refresh.OVER if facts.expires_at <= facts.now else Refresh.ROTATE


# --- The setup code: what lets the first person of a tenant register, as its administrator.
# Invariant: a caller who does not have the code learns nothing about it; a caller who has it learns why it is void.

MOST_TRIES = 10
"""Wrong ones; after them the code is void."""
CODE_BYTES = 20
_GROUP = 4
_NEW = (
    "For a new one, start the stack again as before, such as with `make up`, or run `python -m perdure.apps.bootstrap` "
    "with the same settings"
)
"""With other settings, such as without its apps, a start would publish something else."""


@dataclass(frozen=True, slots=True)
class SetupCode:
    """What is kept of a code."""

    sha256: str
    is_expired: bool
    wrong_tries: int

    @property
    def is_good(self) -> bool:
        """Whether it still lets somebody in."""
        return not self.is_expired and self.wrong_tries < MOST_TRIES

    def fits(self, given: str) -> bool:
        """Whether it was made of this text."""
        return hmac.compare_digest(self.sha256, sha256_of(given))


def code_of(bits: bytes) -> str:
    """These 160 bits as 8 groups of 4 base32 characters."""
    text = base64.b32encode(bits).decode()
    return "-".join(text[at : at + _GROUP] for at in range(0, len(text), _GROUP))


def sha256_of(code: str) -> str:
    """What is stored of a code; case, spaces and dashes do not count."""
    return sha256_hex("".join(code.upper().replace("-", "").split()))


def code_refusal(given: str, kept: SetupCode | None) -> CallerError | None:
    """Why this code lets nobody in, or None where it does."""
    if not given.strip():
        why = "The first person registers with the setup code that the start of the stack (such as `make up`) or "
        why += "`python -m perdure.apps.bootstrap` printed; send it"
        return CallerError("setup_code_needed", why, status=401)
    if kept is None or not kept.fits(given):
        why = "This setup code is wrong, was used, or was replaced by a newer one"
    elif kept.wrong_tries >= MOST_TRIES:
        why = f"This setup code is void after {MOST_TRIES} wrong tries"
    elif kept.is_expired:
        why = "This setup code has expired"
    else:
        return None
    return CallerError("setup_code_invalid", f"{why}. {_NEW}", status=403)


# --- What somebody is called who signs in by a provider elsewhere for the first time.

_NAME = re.compile(r"[a-z][a-z0-9._-]{0,62}")
_CLAIMS = ("preferred_username", "email", "sub")
"""The first that gives a name is taken."""
_RESERVED = "erased-"


def name_from(claims: Mapping[str, object]) -> str | None:
    """A name of ours from what the provider says; None where nothing of it can be one."""
    for claim in _CLAIMS:
        given = claims.get(claim)
        if not isinstance(given, str):
            continue
        plain = unicodedata.normalize("NFKD", given.partition("@")[0]).encode("ascii", "ignore").decode().lower()
        name = re.sub(r"[^a-z0-9._-]+", "-", plain).strip("-._")[:63]
        if _NAME.fullmatch(name) and not name.startswith(_RESERVED):
            return name
    return None


def display_name_from(claims: Mapping[str, object]) -> str:
    """What the person is called in full; empty where the provider does not say."""
    given = claims.get("name")
    return " ".join(given.split())[:100] if isinstance(given, str) and given.isprintable() else ""


# --- How long a caller waits after wrong passwords, so that guessing gets slower and the owner keeps a way in.
# A device that the owner has signed in from before is judged by its own wrong guesses only: guesses from elsewhere
# never delay it. Every other caller is judged by the guesses from its address at this account, by those of all unknown
# devices at this account, and by those from its address at all accounts; the longest wait counts.

_HOUR, _DAY = 3_600, 86_400
_MOST_DOUBLINGS = 30


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast one may guess."""

    name: str
    free: int
    """Wrong guesses without a wait."""
    most_seconds: int
    """The longest wait; the first one is a second, and each is twice the one before it."""
    kept_seconds: int = _DAY
    """Wrong guesses are forgotten this long after the last one."""
    is_window: bool = False
    """They are forgotten this long after the first one: of what many people share, mistakes do not add up for ever."""


DEVICE = Pace("device", 5, 900)
PLACE = Pace("place", 5, 900)
"""One address at one account."""
ACCOUNT = Pace("account", 20, 60, _HOUR, is_window=True)
"""All unknown devices at one account. Short: a stranger who keeps guessing also delays an owner on a new device."""
ADDRESS = Pace("address", 50, 60, _HOUR, is_window=True)
"""One address at all accounts: many people may share one."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The wrong guesses that are counted under one key."""

    failures: int = 0
    last_at: float = 0.0


def wait_after(pace: Pace, failures: int) -> int:
    """How many seconds after so many wrong guesses the next one may come."""
    if failures < pace.free:
        return 0
    return int(min(pace.most_seconds, 2 ** min(failures - pace.free, _MOST_DOUBLINGS)))


def wait_left(counted: Sequence[tuple[Pace, Tally]], now: float) -> float:
    """How many seconds from now the next guess may come; 0 for one that may come now."""
    due = (tally.last_at + wait_after(pace, tally.failures) - now for pace, tally in counted if tally.failures)
    # A clock that was set back makes no wait longer than it would be from now.
    longest = max((wait_after(pace, tally.failures) for pace, tally in counted), default=0)
    return min(longest, max(0.0, *due, 0.0)) if counted else 0.0


# --- Whether a password is too easy to guess: common ones, patterns, and words that an attacker knows of its owner.
# zxcvbn knows 30,000 common passwords, names, words and keyboard patterns, and finds them reversed, with digits
# appended and with letters replaced (`p4ssw0rd`).

MOST_LOOKED_AT = 32
"""Characters: zxcvbn takes 3 ms for 32 and up to 1.7 s for 64 of the worst kind (measured)."""
_ENOUGH = 2
"""zxcvbn's score of more than 1,000,000 guesses."""
_ENOUGH_WITH_NAMES = 3
"""More than 100,000,000 guesses, for a password that has a name in it."""
_OURS = "perdure"
_SHORTEST_WORD = 3
_LEAST_BESIDE_NAMES = 6
"""Letters and digits that a password with a name in it has beside the names: a year is too little."""
_LEET = str.maketrans("4@301!57$", "aaeoiists")
_ADVICE = "Use a longer one, for example four words that have nothing to do with each other"
_OF_NAMES = f"This password is made of your name, the tenant's name or the product's name. {_ADVICE}"


def names_of(*texts: str) -> list[str]:
    """The words that a password of this person must not be made of: names in full, in parts and without spaces."""
    found = [_OURS]
    for text in texts:
        parts = re.split(r"[\W_]+", text.casefold())
        found += [text.casefold(), "".join(parts), *parts]
    return list(dict.fromkeys(word for word in found if len(word) >= _SHORTEST_WORD))


def weakness(password: str, names: Iterable[str]) -> str | None:
    """Why this password is refused, as a sentence; None for a good one. `names` are those of `names_of`."""
    given = list(names)
    # A long password is as good as the better one of its ends.
    ends = dict.fromkeys((password[:MOST_LOOKED_AT], password[-MOST_LOOKED_AT:]))
    found = [_weakness(end, given) for end in ends]
    return None if None in found else found[0]


def _weakness(password: str, names: list[str]) -> str | None:
    from zxcvbn import zxcvbn  # 60 ms to import (measured), for the few requests that set a password

    whole = zxcvbn(password, user_inputs=names)
    joined = re.sub(r"[\W_]+", "", password)  # signs between names hide them from zxcvbn
    for result in (whole, zxcvbn(joined, user_inputs=names)) if joined and joined != password else (whole,):
        has_names = any(match.get("dictionary_name") == "user_inputs" for match in result["sequence"])
        if has_names and result["score"] < _ENOUGH_WITH_NAMES:
            return _OF_NAMES
    if _is_of_names(password, names):
        return _OF_NAMES
    if whole["score"] < _ENOUGH:
        return f"{whole['feedback']['warning'] or 'This password is easy to guess.'} {_ADVICE}"
    return None


def _is_of_names(password: str, names: list[str]) -> bool:
    """Whether hardly anything is left of the password without the names in it, however often they are repeated."""
    plain = re.sub(r"[\W_]+", "", password.casefold().translate(_LEET))
    left = plain
    for name in sorted({name.translate(_LEET) for name in names}, key=len, reverse=True):
        left = left.replace(re.sub(r"[\W_]+", "", name) or "\0", "")
    return left != plain and len(left) < _LEAST_BESIDE_NAMES
