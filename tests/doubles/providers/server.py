"""A scripted provider over real HTTP that is six vendors: OpenAI, Azure, Anthropic, Mistral, Gemini and Ollama.

Each vendor has its URLs below a path with its name, OpenAI also those without one. It takes only its own URLs and its
own header of the key, rejects in its own form what it documents, and answers in its own format.

As a process: `python -m tests.doubles.providers.server --port N --script FILE` (YAML or JSON, a list of steps). In a
test: `with ProviderDouble() as double`. Steps are tried in order; the first that is not used up and matches serves the
request. `GET /_requests` lists every request that arrived, so that a test can count them; `DELETE /_requests` forgets
them.
"""

import argparse
import asyncio
import itertools
import json
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import uvicorn
import yaml
from pydantic import JsonValue, TypeAdapter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from tests.doubles.providers.requests import Seen, latest_user_text
from tests.doubles.providers.script import Fault, Refusal, Step
from tests.doubles.providers.vendors import VENDORS, Vendor
from tests.doubles.providers.wires import chunk, error_body, fault_lines, line

STEPS = TypeAdapter(list[Step])


class ConnectionAware(H11Protocol):
    """Hands its transport to the application, which can then reset the connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.app_state = {**self.app_state, "transport": transport}
        super().connection_made(transport)


def reset(request: Request) -> None:
    transport = request.scope["state"]["transport"]
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


async def _stream(vendor: Vendor, step: Step, seen: Seen, request: Request) -> AsyncIterator[bytes]:
    """The lines of a step; logs its end, also if the client has disconnected."""
    wire, said = vendor.wire, (seen.model, seen.body)
    outcome = "client_gone"
    try:
        for number, piece in enumerate(wire.text(step, *said)):
            if number == 1:  # the one before names the role
                seen.spoke_at = time.time()
            yield piece
            await asyncio.sleep(step.token_seconds)
        if step.fault is Fault.RESET:
            await asyncio.sleep(0.05)  # lets the text leave before the reset overtakes it
            outcome = "reset"
            reset(request)
        elif step.fault is Fault.HANG:
            await asyncio.sleep(3600)
        elif step.fault is Fault.ENDLESS:
            for number in itertools.count():
                yield line(chunk(seen.model, {"content": f"word{number} " * 200}))
                await asyncio.sleep(step.token_seconds)
        else:
            for piece in fault_lines(step.fault, seen.model) if step.fault else wire.end(step, *said):
                yield piece
            outcome = step.fault.value if step.fault else "answered"
    finally:
        seen.outcome = outcome


def _ended(seen: Seen, outcome: str, response: Response) -> Response:
    seen.outcome = outcome
    return response


def _addressed(request: Request) -> tuple[Vendor, str]:
    """The vendor that a request is for, and its URL there with the query."""
    first, _, rest = request.url.path.lstrip("/").partition("/")
    vendor, path = (VENDORS[first], f"/{rest}") if first in VENDORS else (VENDORS["openai"], request.url.path)
    return vendor, path + (f"?{request.url.query}" if request.url.query else "")


def _refused(vendor: Vendor, url: str, request: Request, seen: Seen) -> tuple[int, JsonValue]:
    """The status and the error of a request that the vendor rejects; 200 if it takes it."""
    if not re.fullmatch(re.escape(vendor.base) + vendor.urls, url):
        return 404, vendor.error(404, Refusal("Resource not found"))
    if vendor.header and not request.headers.get(vendor.header):
        status = 403 if vendor.name == "gemini" else 401
        return status, vendor.error(status, Refusal("You didn't provide an API key.", "invalid_api_key"))
    error = vendor.refusal(seen.body, url)
    return (200, None) if error is None else (400, error)


class ProviderDouble:
    def __init__(self, steps: Iterable[Step] = ()) -> None:
        self.steps = [*steps]
        self.used: Counter[int] = Counter()
        self.log: list[Seen] = []
        requests = Route("/_requests", self._requests, methods=["GET", "DELETE"])
        self.app = Starlette(routes=[requests, Route("/{path:path}", self._answer, methods=["POST"])])
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self.port = 0

    @property
    def api_base(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def params_for(self, model: str) -> dict[str, JsonValue]:
        """The parameters of requests to a model: the address of its vendor, OpenAI's for an unknown one, and a key."""
        vendor = VENDORS.get(model.partition("/")[0].removesuffix("_chat"))
        if vendor is None:
            return {"api_base": self.api_base, "api_key": "k"}
        base = f"http://127.0.0.1:{self.port}/{vendor.name}{vendor.base}"
        return {"api_base": base, "api_key": "k", **vendor.params}

    def script(self, *steps: Step) -> None:
        self.steps = [*steps]
        self.used.clear()
        self.log.clear()

    @property
    def requests(self) -> list[Seen]:
        return list(self.log)

    async def _answer(self, request: Request) -> Response:
        vendor, url = _addressed(request)
        seen = await self._arrived(request, url)
        status, error = _refused(vendor, url, request, seen)
        if status != 200:
            return _ended(seen, str(status), JSONResponse(error, status))
        step = self._step(seen)
        if step is None:
            problem = Step(status=418, message="the script of the double has no step for this request")
            return _ended(seen, "no_step", JSONResponse(error_body(problem), 418))
        await asyncio.sleep(step.first_byte_seconds)
        return await self._serve(vendor, step, seen, request)

    async def _arrived(self, request: Request, url: str) -> Seen:
        body = await request.json()
        seen = Seen(
            idempotency_key=request.headers.get("idempotency-key", ""),
            model=str(body.get("model") or url.partition("/models/")[2].partition(":")[0]),
            user_text=latest_user_text(body),
            tools=[
                each.get("function", each)["name"]
                for tool in body.get("tools") or []
                for each in tool.get("function_declarations", [tool])  # Google's form
            ],
            body=body,
            received_at=time.time(),
            authorized=any(request.headers.get(vendor.header) for vendor in VENDORS.values() if vendor.header),
        )
        self.log.append(seen)
        return seen

    def _step(self, seen: Seen) -> Step | None:
        for place, step in enumerate(self.steps):
            if (step.times is None or self.used[place] < step.times) and step.serves(seen.user_text):
                self.used[place] += 1
                return step
        return None

    async def _serve(self, vendor: Vendor, step: Step, seen: Seen, request: Request) -> Response:
        if step.body is not None:
            text = step.body if isinstance(step.body, str) else json.dumps(step.body)
            return _ended(seen, str(step.status), Response(text, step.status, media_type=step.media))
        if step.status != 200:
            headers = {} if step.retry_after is None else {"retry-after": step.retry_after}
            return _ended(seen, str(step.status), JSONResponse(error_body(step), step.status, headers))
        if step.fault is Fault.RESET_AT_ONCE:
            reset(request)
            return _ended(seen, "reset_at_once", Response())
        if step.fault is Fault.HANG_AT_ONCE:
            await request.receive()  # the body is read: what comes next is the client going away
            return _ended(seen, "client_gone", Response())
        if step.fault is Fault.HTML:
            return _ended(seen, "html", Response("<html>Welcome to the proxy</html>", media_type="text/html"))
        if step.fault is Fault.EMPTY_BODY:
            return _ended(seen, "empty_body", Response(b"", media_type="text/event-stream"))
        refused = [name for name in step.refuses if name in seen.body]
        if refused:
            problem = step.model_copy(update={"status": 400, "message": f"Unsupported parameter: '{refused[0]}'."})
            self.used[self.steps.index(step)] -= 1
            return _ended(seen, "400", JSONResponse(error_body(problem), 400))
        streams = seen.body.get("stream", vendor.name == "ollama") or "streamGenerateContent" in request.url.path
        if step.whole or not streams:
            return _ended(
                seen, "answered", JSONResponse(vendor.wire.whole(step, seen.model, seen.body), media_type=step.media)
            )
        return StreamingResponse(_stream(vendor, step, seen, request), media_type=vendor.wire.media)

    async def _requests(self, request: Request) -> Response:
        if request.method == "DELETE":
            self.log.clear()
        return JSONResponse([asdict(seen) for seen in self.log])

    def config(self, port: int) -> uvicorn.Config:
        """The server's settings: h11, quiet, one second for open streams at the end."""
        quiet: dict[str, Any] = {"ws": "none", "lifespan": "off", "log_level": "critical"}
        where: dict[str, Any] = {"host": "127.0.0.1", "port": port, "http": ConnectionAware}
        return uvicorn.Config(self.app, **where, **quiet, timeout_graceful_shutdown=1)

    def __enter__(self) -> Self:
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self._server = uvicorn.Server(self.config(self.port))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None and self._thread is not None
        self._server.should_exit = True
        self._thread.join(timeout=10)


def main() -> None:
    parser = argparse.ArgumentParser(description="A provider double on 127.0.0.1.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--script", type=Path, help="YAML or JSON: a list of steps")
    arguments = parser.parse_args()
    steps = STEPS.validate_python(yaml.safe_load(arguments.script.read_text())) if arguments.script else []
    uvicorn.Server(ProviderDouble(steps).config(arguments.port)).run()


if __name__ == "__main__":
    main()
