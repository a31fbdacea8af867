"""Asking for the preview of a call that waits for its reviewer: ids only, the call is read from Postgres."""

from contracts.frozen import Tolerant
from contracts.turns import Routing, TurnAddress


class PreviewAsk(Tolerant):
    """Of which approval."""

    address: TurnAddress
    approval_id: str
    routing: Routing


class PreviewKept(Tolerant):
    """Whether there is a new one: a call that was decided meanwhile keeps what its reviewer saw."""

    kept: bool
