"""Guessing passwords gets slower with every wrong guess, and the owner's own devices stay out of it.

A browser that has signed in keeps a signed cookie that names the account and the device. It opens nothing: a caller
who has it is judged by the wrong guesses of this device alone.
"""

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from api import cookies
from api.auth import is_secure
from api.services import Services
from contracts.digests import sha256_hex
from contracts.errors import LimitReached
from policy.addresses import counted_as
from policy.guessing import ACCOUNT, ADDRESS, DEVICE, PLACE, wait_left
from store.guesses import Key

DEVICE_LASTS = timedelta(days=180)
_COOKIE = "perdure_device"
_PURPOSE = "known device"
_TRIES = 20
"""Of counting a guess among others at once."""


@dataclass(slots=True)
class Guess:
    """One guess at a password, which counts as wrong until it is known to be right."""

    right: bool = False


@asynccontextmanager
async def guessing(services: Services, keys: Sequence[Key]) -> AsyncIterator[Guess]:
    """Let one guess through, if it may come now.

    Raises: LimitReached `sign_in_delayed`.
    """
    await _admitted(services, keys)
    guess = Guess()
    try:
        yield guess
    except LimitReached:  # it was not looked at
        await services.guesses.take_back(keys)
        raise
    if guess.right:
        own = [key for key in keys if key[0] in (DEVICE, PLACE)]
        await services.guesses.forget(own)
        await services.guesses.take_back([key for key in keys if key not in own])


async def _admitted(services: Services, keys: Sequence[Key]) -> None:
    wait = 1.0
    for _ in range(_TRIES):
        now, tallies = await services.guesses.read(keys)
        wait = wait_left([(pace, tally) for (pace, _), tally in zip(keys, tallies, strict=True)], now)
        if wait > 0:
            break
        if await services.guesses.count(keys, tallies):
            return
    seconds = max(1, ceil(wait))
    raise LimitReached(
        "sign_in_delayed",
        f"Too many wrong passwords; try again in {seconds} s",
        {"retry_after_seconds": seconds},
    )


def keys_of(services: Services, scope: Scope, tenant_id: str, name: str, user_id: str | None) -> list[Key]:
    """What a guess at this account is counted under. A name that nobody has is counted like any other."""
    device = _known_device(services, scope, tenant_id, user_id) if user_id is not None else ""
    if device:
        return [(DEVICE, device)]
    address = counted_as((scope.get("client") or ("", 0))[0])
    account = f"{tenant_id}/{name}"
    return [(PLACE, f"{account}/{address}"), (ACCOUNT, account), (ADDRESS, address)]


def remember_device(services: Services, scope: Scope, response: Response, tenant_id: str, user_id: str) -> None:
    """Let this browser be known from now on."""
    device = _known_device(services, scope, tenant_id, user_id) or secrets.token_urlsafe(18)
    expires = datetime.now(UTC) + DEVICE_LASTS
    until = str(int(expires.timestamp()))
    seal = services.tokens.keys.newest.derived(_PURPOSE, tenant_id, user_id, device, until)
    value = f"{device}.{until}.{seal}"
    cookies.put(
        response, _cookie(tenant_id, user_id), value, secure=is_secure(services, scope), expires=expires, strict=True
    )


def _known_device(services: Services, scope: Scope, tenant_id: str, user_id: str) -> str:
    """The device that this browser's cookie names; empty for one that has not signed in as this user."""
    header, secure = Headers(scope=scope).get("cookie", ""), is_secure(services, scope)
    device, _, rest = cookies.read(header, _cookie(tenant_id, user_id), secure=secure).partition(".")
    until, _, seal = rest.partition(".")
    if not services.tokens.keys.knows(seal, _PURPOSE, tenant_id, user_id, device, until):
        return ""
    return device if int(until) > datetime.now(UTC).timestamp() else ""


def _cookie(tenant_id: str, user_id: str) -> str:
    """One for each account, so that people who share a browser keep theirs."""
    return f"{_COOKIE}_{sha256_hex(f'{tenant_id}/{user_id}')[:12]}"
