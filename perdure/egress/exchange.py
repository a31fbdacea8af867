"""One outgoing request and its response, for every HTTP library: reachable hosts, size limits and deadlines."""

import asyncio
import socket
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final, Generic, Protocol, TypeVar

import structlog

from perdure.contracts.errors import CallerError
from perdure.core.egress import NamedHost, Outbound, canonical_host, proxied_refusal_of, refusal_of
from perdure.egress.record import Exchange

ACCEPTED_ENCODINGS: Final = "gzip, deflate"
"""The encodings to request. zlib decompresses them piece by piece, so that a compression bomb stops at the limit."""
MAX_EVENT_LINES: Final = 1_000
"""Maximum lines of one server-sent event. Clients join lines in quadratic time; a provider's event has two or three."""
MAX_ADDRESSES = 6
"""The number of addresses of one name that are tried, each with an equal share of the time."""
_SUPPORTED_ENCODINGS = frozenset({"identity", "gzip", "x-gzip", "deflate"})
_PIECE_BYTES = 64 * 1024
_ORIGIN_EXTENSION = "perdure_origin"
_PORTS = {"https": 443, "http": 80}
_log = structlog.get_logger(__name__)
Stream = TypeVar("Stream")
Library = TypeVar("Library")


class EgressRefused(Exception):
    """The rules for outgoing requests forbid this request, and it was not sent. The message states how to allow it."""


class AnswerWithheld(Exception):
    """The target reported success, so it carried out the request, but the response was not read."""

    def __init__(self, message: str, *, code: str, method: str, limit: int) -> None:
        super().__init__(message)
        self.code, self.method, self.limit = code, method, limit


class DeadlineMissed(TimeoutError):
    """The exchange missed its deadline. `sent` is true if the target may have received the request."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class IdleTooLong(DeadlineMissed):
    """The exchange was silent for longer than the call waits for the next byte."""


class Rewriter(Protocol):
    """Changes the body of a success while it is read."""

    def add(self, data: bytes) -> bytes:
        """Returns what the client reads after this piece of the body."""
        ...

    def end(self) -> bytes:
        """Returns what the client reads after the last piece."""
        ...


class Adapter(Protocol):
    """Adapts one kind of server to its client. `Transport` applies it; no other transport does."""

    def request_again(self, request: bytes, refusal: bytes) -> bytes | None:
        """Returns the body of a further request after a status 400 or 422, by the bodies of both; None if there is
        none."""
        ...

    def rewriter(self, request: bytes, content_type: str) -> Rewriter | None:
        """Returns what rewrites the body of a success, by the request's body; None to leave it unchanged."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """Settings for the requests of one call, in addition to the transport's own."""

    named: tuple[NamedHost, ...] = ()
    answer_bytes: int | None = None
    stream_bytes: int | None = None
    """Limit of a whole stream of server-sent events. Each event is limited by `answer_bytes`. None: `answer_bytes`
    limits the whole stream too."""
    limits_events: bool = True
    """False if the caller itself limits each event."""
    failure_bytes: int = 1024 * 1024
    """Limit of the body of an error response; the rest is cut off."""
    deadline: float | None = None
    """Time on the `time.monotonic` clock by which the last byte must have arrived."""
    idle_seconds: float | None = None
    """Maximum time without a byte, before the response and within it."""
    adapter: Adapter | None = None
    exchange: Exchange | None = None
    """The record that `Transport` fills in; no other transport does."""

    def wait(self) -> float | None:
        """Returns the seconds in which the next byte must arrive; None if there is no limit."""
        limits = [each for each in (seconds_left(self.deadline), self.idle_seconds) if each is not None]
        return min(limits, default=None)

    def missed(self, host: str, what: str, *, sent: bool) -> DeadlineMissed:
        """Returns the error of a response that did not arrive within `wait()`."""
        remaining = seconds_left(self.deadline)
        if self.idle_seconds is not None and (remaining is None or remaining > 0):
            return IdleTooLong(f"{host} sent nothing for {self.idle_seconds:g} s", sent=sent)
        return DeadlineMissed(f"{host} did not {what} in time", sent=sent)


_DEFAULT_CALL = Call()
_CALL: ContextVar[Call] = ContextVar("perdure_egress_call")


@contextmanager
def calling(call: Call) -> Iterator[None]:
    """Applies `call` to the requests that begin within the block."""
    token = _CALL.set(call)
    try:
        yield
    finally:
        _CALL.reset(token)


def current_call() -> Call:
    """Returns the call whose block is active, or a call with default settings."""
    return _CALL.get(_DEFAULT_CALL)


def refusal_in(error: BaseException | None) -> EgressRefused | AnswerWithheld | None:
    """Returns the first EgressRefused or AnswerWithheld among the causes of a library's exception, or None."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, EgressRefused | AnswerWithheld):
            return error
        seen.add(id(error))
        inner = getattr(error, "original_exception", None)  # LiteLLM wraps errors of a running stream in this attribute
        error = inner if isinstance(inner, BaseException) else error.__cause__ or error.__context__
    return None


class Url(Protocol):
    """The address of a request, as every library has it."""

    @property
    def scheme(self) -> str: ...
    @property
    def raw_host(self) -> bytes: ...
    @property
    def port(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Route:
    """The route of a request."""

    host: str
    port: int
    proxied: bool


def route_of(outbound: Outbound, url: Url, extensions: MutableMapping[str, Any]) -> Route:
    """Decides whether a request is sent directly or through the proxy. A direct connection is checked again when it
    opens, address by address.

    `extensions` belong to the request. A client copies them into the request that follows a redirect, which makes a
    redirect to another host detectable.

    Raises: EgressRefused.
    """
    if url.scheme not in _PORTS:
        raise EgressRefused(f"the scheme {url.scheme[:20]!r} is not http or https")
    name = host_of(url.raw_host.decode("ascii"))
    port_number = url.port or _PORTS[url.scheme]
    origin = f"{url.scheme}://{name}:{port_number}"
    first = extensions.setdefault(_ORIGIN_EXTENSION, origin)
    if first != origin:
        raise logged_refusal(name, f"{first} redirects to another host, {origin}; such redirects are not followed")
    if not outbound.proxy or any(
        named_host.is_of(name, port_number) for named_host in (*outbound.named, *current_call().named)
    ):
        return Route(name, port_number, proxied=False)
    reason = proxied_refusal_of(name, port_number)
    if reason is not None:
        raise logged_refusal(name, reason)
    return Route(name, port_number, proxied=True)


def check_addresses(outbound: Outbound, host: str, port: int, addresses: list[str]) -> None:
    """Checks the addresses of a host before a connection is opened.

    Raises: EgressRefused.
    """
    reason = refusal_of(host, port, addresses, (*outbound.named, *current_call().named))
    if reason is not None:
        raise logged_refusal(host, reason, addresses)


def logged_refusal(host: str, reason: str, addresses: list[str] | None = None) -> EgressRefused:
    """Logs a refusal and returns it. Only the log contains the addresses, because they are for the operator and not for
    a model."""
    _log.warning("egress_refused", host=host, addresses=addresses or [], why=reason)
    return EgressRefused(reason)


class Meter:
    """Decompresses a response piece by piece and counts its bytes, before and after decompression.

    A successful response that is too large raises. The body of any other response is cut off, because its status is
    enough.
    """

    def __init__(
        self, outbound: Outbound, call: Call, method: str, host: str, status: int, headers: Mapping[str, str]
    ) -> None:
        limit = call.answer_bytes or outbound.answer_bytes
        self._succeeded = 200 <= status < 300
        self._limit = self._total = limit if self._succeeded else min(limit, call.failure_bytes)
        self._method, self._host = method, host
        self._encoding = headers.get("content-encoding", "identity").strip().lower() or "identity"
        self._unpacker = _unpacker(self._encoding)
        self._announced = headers.get("content-length", "") if self._unpacker is None else ""
        self._events: _Events | None = None
        streams = headers.get("content-type", "").lower().startswith("text/event-stream")
        if self._succeeded and streams and call.stream_bytes is not None:
            self._events, self._total = _Events() if call.limits_events else None, call.stream_bytes
        self._packed = self._unpacked = 0
        self.closed = False
        """True if the rest of the body is not read."""

    @property
    def unpacks(self) -> bool:
        """True if the decompressed body differs from the received one, so that the headers about its encoding do not
        apply."""
        return self._unpacker is not None

    def unpack(self, data: bytes) -> Iterator[bytes]:
        """Yields the decompressed pieces of `data`.

        Raises: AnswerWithheld; zlib.error if the body is not compressed as the headers state.
        """
        if self._encoding not in _SUPPORTED_ENCODINGS:
            self._close(f"has the encoding {self._encoding[:40]!r}, which is not supported", "answer_encoding")
            return
        self._packed += len(data)
        if self._packed > self._total or (self._announced.isdecimal() and int(self._announced) > self._total):
            self._close(self._size_problem(), "answer_too_large")
            return
        for piece in (data,) if self._unpacker is None else self._unpacker.pieces(data):
            self._unpacked += len(piece)
            if self._unpacked > self._total:
                self._close(self._size_problem(), "answer_too_large")
                return
            if self._events is not None and self._events.is_too_large(piece, self._limit):
                self._close(
                    f"has an event of more than {self._limit} bytes or {MAX_EVENT_LINES} lines", "answer_too_large"
                )
                return
            yield piece

    def _size_problem(self) -> str:
        announced = f" ({self._announced} announced)" if self._announced.isdecimal() else ""
        return f"has more than {self._total} bytes{announced}"

    def _close(self, problem: str, code: str) -> None:
        self.closed = True
        _log.warning("answer_withheld", host=self._host, code=code, succeeded=self._succeeded)
        if self._succeeded:
            message = f"the response of {self._host} {problem}"
            raise AnswerWithheld(message, code=code, method=self._method, limit=self._total)


class _Unpacker:
    """Unpacks with zlib, in pieces of limited size. A deflate body can come with or without zlib's header."""

    def __init__(self, window: int) -> None:
        self._zlib = zlib.decompressobj(window)
        self._may_be_raw = window == zlib.MAX_WBITS

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yields the decompressed content of `data` in pieces of limited size, so that a small body cannot fill the
        memory."""
        while data:
            try:
                piece = self._zlib.decompress(data, _PIECE_BYTES)
            except zlib.error:
                if not self._may_be_raw:
                    raise
                self._zlib, self._may_be_raw = zlib.decompressobj(-zlib.MAX_WBITS), False
                continue
            self._may_be_raw = False
            data = self._zlib.unconsumed_tail
            if piece:
                yield piece


def _unpacker(encoding: str) -> _Unpacker | None:
    if encoding in ("gzip", "x-gzip"):
        return _Unpacker(zlib.MAX_WBITS | 16)
    return _Unpacker(zlib.MAX_WBITS) if encoding == "deflate" else None


class _Events:
    """Tracks the size of the current server-sent event."""

    def __init__(self) -> None:
        self._bytes = self._lines = 0
        self._last = b""

    def is_too_large(self, piece: bytes, limit: int) -> bool:
        """Counts a piece of the stream and returns whether the current event exceeds a limit."""
        recent = self._last + piece
        end = max(recent.rfind(mark) + len(mark) if mark in recent else 0 for mark in (b"\n\n", b"\r\r", b"\r\n\r\n"))
        if end > len(self._last):  # an event ends in this piece
            piece = recent[end:]
            self._bytes = self._lines = 0
        self._bytes += len(piece)
        self._lines += piece.count(b"\n") + piece.count(b"\r")
        self._last = recent[-3:]
        return self._bytes > limit or self._lines > MAX_EVENT_LINES


def ask_for_known_encodings(headers: MutableMapping[str, str]) -> None:
    """Replaces the encodings that a request asks for with those that Meter decompresses."""
    if headers.get("accept-encoding") != "identity":
        headers["accept-encoding"] = ACCEPTED_ENCODINGS


def read_headers(
    raw: Iterable[tuple[bytes, bytes]], meter: Meter, *, rewritten: bool = False
) -> Sequence[tuple[bytes, bytes]]:
    """Returns the headers that fit the body as it is read: those about its encoding and length only if it is passed on
    unchanged."""
    gone = (b"content-encoding", b"content-length") if meter.unpacks or rewritten else ()
    return [(name, value) for name, value in raw if name.lower() not in gone]


async def read_body(
    received: AsyncIterator[bytes],
    meter: Meter,
    call: Call,
    host: str,
    decoding_error: type[Exception],
    rewriter: Rewriter | None = None,
) -> AsyncIterator[bytes]:
    """Yields the body of a response, decompressed. `decoding_error` is the library's exception for a body that is not
    compressed as its headers state.

    Raises: AnswerWithheld, DeadlineMissed; `decoding_error`.
    """
    while not meter.closed:
        try:
            async with asyncio.timeout(call.wait()):
                data = await anext(received, None)
        except TimeoutError as error:
            raise call.missed(host, "complete its response", sent=True) from error
        if data is None:
            if rewriter is not None and (rest := rewriter.end()):
                yield rest
            return
        try:
            for piece in meter.unpack(data):
                if call.exchange is not None:
                    call.exchange.read(piece)
                yield piece if rewriter is None else rewriter.add(piece)
        except zlib.error as error:
            raise decoding_error(f"{host}: {error}") from error


def seconds_left(deadline: float | None) -> float | None:
    """Returns the seconds until the deadline, negative after it; None if there is none."""
    return None if deadline is None else deadline - time.monotonic()


def host_of(host: str) -> str:
    """Returns the canonical form of a host.

    Raises: EgressRefused.
    """
    try:
        return canonical_host(host)
    except CallerError as error:
        raise EgressRefused(error.message) from None


def is_literal(host: str) -> bool:
    """Returns whether the host is an IP address, so that nothing needs to be resolved."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


async def resolve(host: str, port: int) -> list[str]:
    """Returns the addresses of a name without duplicates.

    Raises: OSError.
    """
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


def resolve_blocking(host: str, port: int) -> list[str]:
    """Returns the addresses of a name without duplicates; blocks the thread.

    Raises: OSError.
    """
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


async def connect_checked(
    outbound: Outbound,
    host: str,
    port: int,
    seconds: float | None,
    connect: Callable[[str, float | None], Awaitable[Stream]],
    failures: tuple[type[Exception], type[Exception]],
) -> Stream:
    """Connects to a checked address of `host`, and tries the next one if an address fails. `failures` are the library's
    exceptions for a failed connection and for a timeout.

    A name is resolved once, each of its addresses is checked, and the connection uses one of them. These checks are
    below TLS, so a certificate is still checked against the URL's host name.

    Raises: EgressRefused; `failures`.
    """
    name, (connection_error, timeout_error) = host_of(host), failures
    deadline = None if seconds is None else time.monotonic() + seconds
    addresses = [name]
    if not is_literal(name):
        try:
            addresses = await asyncio.wait_for(resolve(name, port), seconds)
        except TimeoutError as error:
            raise timeout_error(f"{name} did not resolve in time") from error
        except (OSError, UnicodeError) as error:
            raise connection_error(str(error)) from error
    check_addresses(outbound, name, port, addresses)
    candidates = addresses[:MAX_ADDRESSES]
    for index, address in enumerate(candidates):
        try:
            return await connect(address, time_share(deadline, len(candidates) - index))
        except failures:
            if index == len(candidates) - 1:
                raise
    raise connection_error(f"{name} has no IP address")


def time_share(deadline: float | None, attempts: int) -> float | None:
    """Returns the time for the next attempt: an equal share of the remaining time."""
    return None if deadline is None else max(deadline - time.monotonic(), 0.0) / attempts


class CheckedNetwork(Generic[Stream]):
    """The part of a library's network backend that connects only to checked addresses. `inner` is the library's own
    backend for anyio, and `failures` are as in `connect_checked`."""

    def __init__(self, outbound: Outbound, inner: Any, failures: tuple[type[Exception], type[Exception]]) -> None:
        self._outbound, self._inner, self._failures = outbound, inner, failures

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> Stream:
        """Opens a connection to the first checked address that accepts one."""

        async def connect(address: str, seconds: float | None) -> Stream:
            opened: Stream = await self._inner.connect_tcp(address, port, seconds, local_address, socket_options)
            return opened

        return await connect_checked(self._outbound, host, port, timeout, connect, self._failures)

    async def sleep(self, seconds: float) -> None:
        """Waits between two attempts."""
        await asyncio.sleep(seconds)


def direct_and_proxied(
    transport: Callable[..., Library],
    pool: Callable[..., object],
    outbound: Outbound,
    context: Any,
    limits: Any,
    network: object,
) -> tuple[Library, Library | None]:
    """Returns a library's transport for direct requests, which connects through `network`, and the one for requests
    through the proxy, if there is a proxy. `transport` and `pool` are the library's classes."""
    direct: Any = transport(verify=context, limits=limits)
    # The transports have no parameter for the `network_backend` of their pool.
    direct._pool = pool(
        ssl_context=context,
        max_connections=limits.max_connections,
        max_keepalive_connections=limits.max_keepalive_connections,
        keepalive_expiry=limits.keepalive_expiry,
        network_backend=network,
    )
    proxied = transport(verify=context, limits=limits, proxy=outbound.proxy) if outbound.proxy else None
    return direct, proxied
