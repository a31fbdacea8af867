"""What audit rows and exported chain heads are signed with: HMAC-SHA256, under keys that the database never sees.

A signature is `<key id>:<hex>`, so that a key can be followed by another: the first key signs, every key verifies.
"""

import hashlib
import hmac
from dataclasses import dataclass, field

from contracts.errors import CallerError
from policy.secret_texts import ADVICE, key_id, secrets_in


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
