"""What a plain form posts: pairs of names and values, read whole, with a limit, before any page looks at them."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl

from fastapi import Request

from policy.text import is_clean
from reviewer.problems import PageProblem

MOST_BYTES = 2 * 1024 * 1024
"""Percent-encoding makes three bytes of one; what is sent on to the API has the API's own limit."""
_MOST_FIELDS = 2_000
_BODY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a form in their order; a name may come more than once."""

    pairs: Sequence[tuple[str, str]]

    def get(self, name: str, default: str = "") -> str:
        """The first value of this name, without blanks around it."""
        return next((value.strip() for key, value in self.pairs if key == name), default)

    def whole(self, name: str) -> str | None:
        """The first value of this name as it was typed, with the line ends that JSON and programs have."""
        return next((value.replace("\r\n", "\n") for key, value in self.pairs if key == name), None)

    def all(self, name: str) -> list[str]:
        """Every value of this name."""
        return [value for key, value in self.pairs if key == name]


async def read_form(request: Request) -> Form:
    """The form in a request's body.

    Raises: PageProblem 4xx.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise PageProblem(415, "This page takes what its own form sends, and nothing else.")
    body = b""
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MOST_BYTES:
                    raise PageProblem(413, f"That is too much for one form: it may have {MOST_BYTES:,} bytes at most.")
    except TimeoutError:
        raise PageProblem(408, f"The form did not come within {_BODY_SECONDS:.0f} s.") from None
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, max_num_fields=_MOST_FIELDS, encoding="utf-8", errors="strict"
        )
    except ValueError:
        raise PageProblem(400, "The form cannot be read.") from None
    if not all(is_clean(name) and is_clean(value) for name, value in pairs):
        raise PageProblem(422, "A text in the form holds a NUL or half a character, which nobody can store.")
    return Form(pairs)
