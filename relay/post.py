"""The one way by which the relay sends something to an address that a tenant named.

The host is one that the operator allows; its name is looked up once, and the connection goes to what was checked, with
the certificate of the name. No redirect is followed, and an answer is read no further than its status.
"""

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import httpx

from contracts.errors import CallerError
from policy.egress import Target, allowed_target, is_reachable

TIMEOUT_SECONDS = 10.0


class Undelivered(Exception):
    """It did not get through; why is said without a secret."""


@dataclass(frozen=True, slots=True)
class Egress:
    """Where things may be sent."""

    hosts: tuple[str, ...]
    private: bool = False
    """Whether hosts may lie in a private network."""


class Post:
    """Sends."""

    def __init__(self, egress: Egress) -> None:
        self._egress = egress
        self._http = httpx.AsyncClient(
            timeout=TIMEOUT_SECONDS,
            follow_redirects=False,
            trust_env=False,
            limits=httpx.Limits(max_connections=40, max_keepalive_connections=0),
        )

    async def send(self, url: str, headers: Mapping[str, str], body: bytes) -> None:
        """POST it.

        Raises: Undelivered.
        """
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                target = allowed_target(url, self._egress.hosts)
                address = await self._address(target)
                await self._post(url, target, address, headers, body)
        except CallerError as error:
            raise Undelivered(error.message) from error
        except TimeoutError as error:
            raise Undelivered(f"no answer within {TIMEOUT_SECONDS:.0f} s") from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
            raise Undelivered(f"it could not be reached ({type(error).__name__})") from error

    async def _address(self, target: Target) -> str:
        found = await asyncio.get_running_loop().getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        addresses = [str(each[4][0]) for each in found]
        # All of them: a name that stands for a forbidden address as well is not to be trusted.
        if not addresses or not all(is_reachable(target, each, private=self._egress.private) for each in addresses):
            raise Undelivered("its name stands for an address that is not gone to")
        return addresses[0]

    async def _post(self, url: str, target: Target, address: str, headers: Mapping[str, str], body: bytes) -> None:
        parts = urlsplit(url)
        host = f"[{address}]" if ":" in address else address
        pinned = urlunsplit(parts._replace(netloc=f"{host}:{target.port}"))
        request = self._http.build_request(
            "POST",
            pinned,
            headers={**headers, "Host": parts.netloc},
            content=body,
            extensions={"sni_hostname": target.host},
        )
        answer = await self._http.send(request, stream=True)
        await answer.aclose()
        if not answer.is_success:
            raise Undelivered(f"it answered {answer.status_code}")

    async def close(self) -> None:
        """Close every connection."""
        await self._http.aclose()
