"""A scripted provider: the OpenAI chat-completions wire format over real HTTP.

As a process: `python -m tests.doubles.provider --port N --script FILE` (YAML or JSON, a list of steps). In a test:
`with ProviderDouble() as double`. Steps are tried in order; the first that is not used up and matches serves the
request. `GET /_requests` lists every request that arrived, so that a test can count them; `DELETE /_requests` forgets
them.
"""

import argparse
import asyncio
import itertools
import json
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import asdict, dataclass
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

from tests.doubles.provider_steps import Fault, Step
from tests.doubles.provider_wire import chunk as wire_chunk
from tests.doubles.provider_wire import closing_lines, error_body, fault_lines, line, text_lines, whole_body
from tests.doubles.tool_rules import openai_refusal
from tests.doubles.wire_rules import fault_of

STEPS = TypeAdapter(list[Step])


@dataclass(slots=True)
class Seen:
    idempotency_key: str
    model: str
    user_text: str
    tools: list[str]
    body: dict[str, JsonValue]
    received_at: float  # seconds since the epoch
    authorized: bool
    outcome: str = "running"  # `answered`, an error status, a fault, `client_gone`, or `no_step`
    spoke_at: float | None = None  # when the first word of its text or thinking left


class ConnectionAware(H11Protocol):
    """Hands its transport to the application, which can then reset the connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.app_state = {**self.app_state, "transport": transport}
        super().connection_made(transport)


def reset(request: Request) -> None:
    transport = request.scope["state"]["transport"]
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def latest_user_text(body: dict[str, Any]) -> str:
    for message in reversed(body.get("messages") or []):
        if message.get("role") == "user":
            content = message.get("content")
            return content if isinstance(content, str) else json.dumps(content)
    return ""


async def _stream(step: Step, seen: Seen, request: Request) -> AsyncIterator[bytes]:
    """The lines of a step; logs its end, also if the client has disconnected."""
    model = seen.model
    outcome = "client_gone"
    try:
        for number, piece in enumerate(text_lines(step, model)):
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
                yield line(wire_chunk(model, {"content": f"word{number} " * 200}))
                await asyncio.sleep(step.token_seconds)
        else:
            for piece in fault_lines(step.fault, model) if step.fault else closing_lines(step, model, seen.body):
                yield piece
            outcome = step.fault.value if step.fault else "answered"
    finally:
        seen.outcome = outcome


def _ended(seen: Seen, outcome: str, response: Response) -> Response:
    seen.outcome = outcome
    return response


class ProviderDouble:
    def __init__(self, steps: Iterable[Step] = ()) -> None:
        self.steps = [*steps]
        self.used: Counter[int] = Counter()
        self.log: list[Seen] = []
        complete = Route("/v1/chat/completions", self._complete, methods=["POST"])
        other = Route("/{path:path}", self._complete, methods=["POST"])  # the formats of other vendors
        requests = Route("/_requests", self._requests, methods=["GET", "DELETE"])
        self.app = Starlette(routes=[complete, requests, other])
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self.port = 0

    @property
    def api_base(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def script(self, *steps: Step) -> None:
        self.steps = [*steps]
        self.used.clear()
        self.log.clear()

    @property
    def requests(self) -> list[Seen]:
        """Every request since the last script, in order of arrival."""
        return list(self.log)

    async def _complete(self, request: Request) -> Response:
        seen = await self._arrived(request)
        refusal = openai_refusal(seen.body)
        if refusal is not None:
            return _ended(seen, "400", JSONResponse(refusal, 400))
        if fault := fault_of(seen.body):
            return _ended(seen, "400", JSONResponse(error_body(Step(status=400, message=fault)), 400))
        step = await self._step(seen)
        if step is None:
            problem = Step(status=418, message="the script of the double has no step for this request")
            return _ended(seen, "no_step", JSONResponse(error_body(problem), 418))
        await asyncio.sleep(step.first_byte_seconds)
        return await self._serve(step, seen, request)

    async def _arrived(self, request: Request) -> Seen:
        body = await request.json()
        seen = Seen(
            idempotency_key=request.headers.get("idempotency-key", ""),
            model=str(body.get("model")),
            user_text=latest_user_text(body),
            tools=[
                each.get("function", each)["name"]
                for tool in body.get("tools") or []
                for each in tool.get("function_declarations", [tool])  # Google's form
            ],
            body=body,
            received_at=time.time(),
            authorized=bool({"authorization", "x-api-key"}.intersection(request.headers)),
        )
        self.log.append(seen)
        return seen

    async def _step(self, seen: Seen) -> Step | None:
        """The step for a request; None if there is none."""
        for place, step in enumerate(self.steps):
            if (step.times is None or self.used[place] < step.times) and step.serves(seen.user_text):
                self.used[place] += 1
                return step
        return None

    async def _serve(self, step: Step, seen: Seen, request: Request) -> Response:
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
        if step.whole or not seen.body.get("stream"):
            return _ended(seen, "answered", JSONResponse(whole_body(step, seen.model, seen.body)))
        return StreamingResponse(_stream(step, seen, request), media_type="text/event-stream")

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
