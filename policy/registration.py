"""The setup code: what lets the first person of a tenant register, as its administrator.

Invariant: a caller who does not have the code learns nothing about it; a caller who has it learns why it is void.
"""

import base64
import hmac
from dataclasses import dataclass

from contracts.digests import sha256_hex
from contracts.errors import CallerError

MOST_TRIES = 10
"""Wrong ones; after them the code is void."""
CODE_BYTES = 20
_GROUP = 4
_NEW = "Run `perdure up` or `python prepare.py` for a new one"


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
        why = "The first person registers with the setup code that `perdure up` or `python prepare.py` prints; send it"
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
