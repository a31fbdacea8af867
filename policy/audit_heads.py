"""Chain heads as they are kept outside the database: a signed JSON line each."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from pydantic import Field, ValidationError

from contracts.digests import canonical_json
from contracts.frozen import Frozen
from policy.audit_faults import Fault, FaultKind
from policy.audit_key import Keyring, head_text


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
