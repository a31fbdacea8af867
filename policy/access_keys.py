"""The secrets that access tokens are signed with. The first signs; every one verifies, so that it can be followed.

Other values that only the server can make (form tokens, a refresh token's successor) come from the same secrets, each
for its own purpose: none of them can stand in for another.
"""

import base64
import hashlib
import hmac
from dataclasses import dataclass, field

from contracts.errors import CallerError
from policy.secret_texts import ADVICE, key_id, secrets_in


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
