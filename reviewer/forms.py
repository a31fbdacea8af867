"""What a plain form posts: pairs of names and values, read whole, with a limit, before any page looks at them."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from urllib.parse import parse_qsl

from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from policy.printable import size
from policy.text import is_clean
from reviewer.problems import PageProblem

MOST_BYTES = 2 * 1024 * 1024
"""Percent-encoding makes three bytes of one; what is sent on to the API has the API's own limit."""
_CHUNK_BYTES = 256 * 1024
_FORM_BYTES = 65_536
"""What a form has beside its file."""
_THROWN_AWAY_BYTES = 512 * 1024 * 1024
"""Of a file that is too long: a browser that is cut off while it sends does not read why."""
_MOST_FIELDS = 2_000
_WORDS = frozenset({"comment", "message", "reason_code", "option", "to"})
_UPLOAD_SECONDS = 300.0
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


def written(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """What a person wrote into a form: words, and the fields of arguments."""
    return [value for name, value in pairs if value and (name in _WORDS or name.startswith("arg."))]


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that came with a form."""

    name: str
    media_type: str
    size_bytes: int
    file: UploadFile

    async def chunks(self) -> AsyncIterator[bytes]:
        """The content from its beginning, which lies on the disk if it is long."""
        await self.file.seek(0)
        while chunk := await self.file.read(_CHUNK_BYTES):
            yield chunk


def most_upload_bytes(request: Request) -> int:
    """How long a file may be here."""
    most: int = request.app.state.most_upload_bytes
    return most


@asynccontextmanager
async def read_upload(request: Request) -> AsyncIterator[tuple[Form, Upload | None]]:
    """Yields the fields and the file of a request's body; None if no file was chosen. Read only after it is known who
    sends it. A long file is on the disk, and is gone after the block.

    Raises: PageProblem 4xx.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "multipart/form-data":
        raise PageProblem(415, "This page takes what its own form sends, and nothing else.")
    announced = request.headers.get("content-length", "")
    if not announced.isdecimal():
        raise PageProblem(411, "Say how long the file is.")
    most = most_upload_bytes(request)
    if int(announced) > most + _FORM_BYTES:
        await _throw_away(request)
        raise PageProblem(413, f"A file may have {size(most)} at most; this one has {size(int(announced))}.")
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(_UPLOAD_SECONDS):
                read = await stack.enter_async_context(request.form(max_files=1, max_fields=10))
        except TimeoutError:
            raise PageProblem(408, f"The file did not come within {_UPLOAD_SECONDS:.0f} s.") from None
        except HTTPException:
            raise PageProblem(400, "The form cannot be read.") from None
        pairs = [(name, text) for name, text in read.multi_items() if isinstance(text, str)]
        file = next((each for _, each in read.multi_items() if isinstance(each, UploadFile)), None)
        upload = None
        if file is not None and file.filename:
            upload = Upload(file.filename, file.content_type or "", file.size or 0, file)
        _check_texts([*pairs, ("", upload.name if upload else "")])
        yield Form(pairs), upload


async def _throw_away(request: Request) -> None:
    left = _THROWN_AWAY_BYTES
    with suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.stream():
                left -= len(chunk)
                if left < 0:
                    return


def _check_texts(pairs: Sequence[tuple[str, str]]) -> None:
    if not all(is_clean(name) and is_clean(value) for name, value in pairs):
        raise PageProblem(422, "A text in the form holds a NUL or half a character, which nobody can store.")


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
    _check_texts(pairs)
    return Form(pairs)
