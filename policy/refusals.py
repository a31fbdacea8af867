"""Why work is not done, as nodes, streams and clients are told."""

from collections.abc import Mapping
from types import MappingProxyType

from contracts.errors import Problem
from policy.ledger import Claim

STOPPED = Problem(code="stopped", message="the turn was stopped")
OVER = Problem(code=STOPPED.code, message="the turn was stopped or has ended")
"""Where one look at the turn's row answers both."""

REFUSED: Mapping[Claim, Problem] = MappingProxyType(
    {
        Claim.STOPPED: STOPPED,
        Claim.ENDED: Problem(code="turn_ended", message="the turn has ended"),
        Claim.STALE: Problem(code="stale_attempt", message="a later attempt has claimed this call"),
    }
)
"""What a claim that may not act answers with."""
