"""The one way out: every HTTP client that talks to somebody outside sends through a transport of this package.

A transport resolves a name once, asks perdure/core/egress.py about each address, connects to a checked address, refuses
redirects to another host, reads no proxy variables of the environment, and bounds size and time of what comes back.
"""

from perdure.egress.exchange import (
    AnswerWithheld,
    Call,
    EgressRefused,
    OutOfTime,
    calling,
    refusal_in,
)
from perdure.egress.httpx_transport import BlockingTransport, Transport, new_client

__all__ = [
    "AnswerWithheld",
    "BlockingTransport",
    "Call",
    "EgressRefused",
    "OutOfTime",
    "Transport",
    "calling",
    "new_client",
    "refusal_in",
]
