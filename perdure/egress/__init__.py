"""Outgoing HTTP: every client that calls an external host sends through a transport of this package.

A transport resolves a name once, checks each address with perdure/core/egress.py and connects to a checked address. It
refuses redirects to other hosts, reads no proxy variables from the environment, and limits the size and time of
responses.
"""

from perdure.egress.exchange import (
    Adapter,
    AnswerWithheld,
    Call,
    DeadlineMissed,
    EgressRefused,
    IdleTooLong,
    Rewriter,
    calling,
    refusal_in,
)
from perdure.egress.httpx_transport import BlockingTransport, Transport, new_client
from perdure.egress.record import Exchange

__all__ = [
    "Adapter",
    "AnswerWithheld",
    "BlockingTransport",
    "Call",
    "DeadlineMissed",
    "EgressRefused",
    "Exchange",
    "IdleTooLong",
    "Rewriter",
    "Transport",
    "calling",
    "new_client",
    "refusal_in",
]
