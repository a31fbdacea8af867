"""Connecting: a name is resolved once, each of its addresses is checked, and the connection goes to one of them.

It sits below TLS, so a certificate is still checked against the name of the URL.
"""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import TypeVar

from contracts.errors import CallerError
from egress.exchange import EgressRefused, check_addresses
from policy.egress import Outbound, canonical_host

Stream = TypeVar("Stream")
MOST_ADDRESSES = 6
"""Of one name that are tried, each in its share of the time."""


def host_of(host: str) -> str:
    """The canonical form.

    Raises: EgressRefused.
    """
    try:
        return canonical_host(host)
    except CallerError as error:
        raise EgressRefused(error.message) from None


def is_literal(host: str) -> bool:
    """Whether there is nothing to resolve."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a name, each once.

    Raises: OSError.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def resolve_blocking(host: str, port: int) -> list[str]:
    """The same in a thread that waits.

    Raises: OSError.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


async def connected(
    outbound: Outbound,
    host: str,
    port: int,
    seconds: float | None,
    connect: Callable[[str, float | None], Awaitable[Stream]],
    failures: tuple[type[Exception], type[Exception]],
) -> Stream:
    """Connects to a checked address of `host`, the next one if the first does not answer. `failures` are the library's
    own exceptions for no connection and for no time.

    Raises: EgressRefused; `failures`.
    """
    name, (failed, late) = host_of(host), failures
    until = None if seconds is None else time.monotonic() + seconds
    addresses = [name]
    if not is_literal(name):
        try:
            addresses = await asyncio.wait_for(resolve(name, port), seconds)
        except TimeoutError as error:
            raise late(f"{name} was not resolved in time") from error
        except (OSError, UnicodeError) as error:
            raise failed(str(error)) from error
    check_addresses(outbound, name, port, addresses)
    tried = addresses[:MOST_ADDRESSES]
    for place, address in enumerate(tried):
        try:
            return await connect(address, share(until, len(tried) - place))
        except failures:
            if place == len(tried) - 1:
                raise
    raise failed(f"{name} has no address")


def share(until: float | None, among: int) -> float | None:
    """The part of the time that is left for one of `among` tries."""
    return None if until is None else max(until - time.monotonic(), 0.0) / among
