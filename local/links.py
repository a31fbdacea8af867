"""The addresses that a newcomer opens first, each with a code by which the browser is signed in.

The two pages are given under two names of this machine. A browser keeps what a session has by the name, so that one
browser can be the person who asks and the one who decides.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from local.ports import HOST
from local.probes import http_post

CODES = "/v1/auth/codes"


@dataclass(frozen=True, slots=True)
class Link:
    """A page of the stack."""

    label: str
    path: str
    """Where it is found without a code."""
    role: str = ""
    """The local user as whom it is opened; empty for a page that asks nobody who it is."""
    host: str = HOST


PAGES = (
    Link("Chat", "/chat", "requester"),
    Link("Review", "/review", "reviewer", host="localhost"),
    Link("API docs", "/docs"),
)
"""Of a stack, beside the API's own address."""


def host_for(role: str) -> str:
    """The name of this machine under which this local user opens pages."""
    return next((link.host for link in PAGES if link.role == role), HOST)


async def addresses(links: Sequence[Link], port: int, tokens: Mapping[str, str]) -> list[tuple[str, str]]:
    """Label and address of each; without a code where the API gives none."""
    return [(_labelled(link), await _address(link, port, tokens.get(link.role, ""))) for link in links]


def _labelled(link: Link) -> str:
    return f"{link.label} as {link.role}" if link.role else link.label


async def _address(link: Link, port: int, token: str) -> str:
    base = f"http://{link.host}:{port}"
    code = await _code(port, token) if token else ""
    return f"{base}/sign-in?code={code}" if code else base + link.path


async def _code(port: int, token: str) -> str:
    answer = await http_post(HOST, port, CODES, token)
    if answer is None or answer[0] != 201:
        return ""
    try:
        return str(json.loads(answer[1])["code"])
    except (ValueError, KeyError, TypeError):
        return ""
