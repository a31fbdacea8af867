"""Outgoing requests of tests: to this machine, as if the operator had named it."""

from typing import Any

import httpx

from perdure import egress
from perdure.core.egress import Outbound, named_host

LOCAL_OUTBOUND = Outbound(named=(named_host("localhost", by_operator=True),))


def new_client() -> httpx.AsyncClient:
    return egress.new_client(LOCAL_OUTBOUND)


def guard_for_local(litellm: Any) -> None:
    from perdure.egress.httpx_transport import guard

    guard(litellm, LOCAL_OUTBOUND)
