"""One server that is six vendors, each on its own route: OpenAI, Azure, Anthropic, Mistral, Gemini and Ollama.

Each takes only its own URLs and its own header of the key, rejects in its own form what it documents, and streams a
step in its own format.
"""

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from tests.doubles.anthropic_wire import message_lines
from tests.doubles.provider import ProviderDouble
from tests.doubles.provider_steps import Step
from tests.doubles.provider_wire import DONE, chunk, closing_lines, counted_usage, line, text_lines
from tests.doubles.tool_rules import anthropic_refusal, openai_refusal
from tests.doubles.vendor_wires import gemini_fault, gemini_lines, ollama_fault, ollama_lines
from tests.doubles.wire_rules import fault_of

Body = dict[str, Any]
Refusal = tuple[int, JsonValue]


@dataclass(frozen=True, slots=True)
class Vendor:
    model: str
    """A LiteLLM name of one of its models."""
    base: str
    """The rest of `api_base`, after its host."""
    url: str
    """The URLs of requests after that, with their query."""
    header: str
    """The header of the key."""
    refusal: Callable[[Body, str], JsonValue]
    """Its error for a request to a URL; None if it takes it."""
    lines: Callable[[Step, str, Body], Iterator[bytes]]
    params: dict[str, JsonValue] = field(default_factory=dict)
    no_key: Refusal = (401, {"error": {"message": "You didn't provide an API key.", "code": "invalid_api_key"}})
    no_url: Refusal = (404, {"error": {"message": "Invalid URL", "type": "invalid_request_error"}})
    media: str = "text/event-stream"


def _openai(body: Body, _: str) -> JsonValue:
    fault = fault_of(body)
    error: JsonValue = {"message": fault, "type": "invalid_request_error", "param": "messages", "code": None}
    return openai_refusal(body) or ({"error": error} if fault else None)


def _anthropic(body: Body, _: str) -> JsonValue:
    fault = fault_of(body)
    error: JsonValue = {"type": "invalid_request_error", "message": fault}
    return anthropic_refusal(body) or ({"type": "error", "error": error} if fault else None)


def _mistral(body: Body, _: str) -> JsonValue:
    """Its codes: 3230 for the order of messages, 3280 for a call."""
    fault = fault_of(body)
    kind, code = (
        ("function_call", "3280") if " id" in fault or "arguments" in fault else ("request_message_order", "3230")
    )
    return (
        {"object": "error", "message": fault, "type": f"invalid_{kind}", "param": None, "code": code} if fault else None
    )


def _gemini(body: Body, url: str) -> JsonValue:
    """A list with the error, as Google answers streamed requests."""
    fault = gemini_fault(body, url)
    return [{"error": {"code": 400, "message": fault, "status": "INVALID_ARGUMENT"}}] if fault else None


def _ollama(body: Body, _: str) -> JsonValue:
    fault = ollama_fault(body)
    return {"error": fault} if fault else None


def _openai_lines(step: Step, model: str, body: Body) -> Iterator[bytes]:
    yield from text_lines(step, model)
    yield from closing_lines(step, model, body)


SAFE: JsonValue = {"hate": {"filtered": False, "severity": "safe"}, "violence": {"filtered": False, "severity": "safe"}}


def _azure_lines(step: Step, model: str, body: Body) -> Iterator[bytes]:
    """Azure begins with a chunk without choices, for the filter's results of the prompt."""
    prompt: JsonValue = [{"prompt_index": 0, "content_filter_results": SAFE}]
    yield line({**chunk("", {}), "id": "", "object": "", "choices": [], "prompt_filter_results": prompt})
    yield from _openai_lines(step, model, body)


def _mistral_lines(step: Step, model: str, body: Body) -> Iterator[bytes]:
    """Mistral sends whole calls in one chunk, with the finish reason and the usage."""
    yield from text_lines(step, model)
    sent: list[JsonValue] = [
        {"id": call.id, "function": {"name": call.name, "arguments": json.dumps(call.arguments)}, "index": index}
        for index, call in enumerate(step.calls)
    ]
    delta: JsonValue = {"content": "", **({"tool_calls": sent} if sent else {})}
    reason = step.finish_reason or ("tool_calls" if sent else "stop")
    yield line({**chunk(model, delta, reason), "usage": counted_usage(step, body)}) + DONE


def _azure_error(status: int, message: str) -> Refusal:
    return status, {"error": {"code": str(status), "message": message}}


VENDORS = {
    "openai": Vendor("openai/gpt-4o-mini", "/v1", "/chat/completions", "authorization", _openai, _openai_lines),
    "azure": Vendor(
        "azure/our-gpt-4o",
        "",
        r"/openai/deployments/our-gpt-4o/chat/completions\?api-version=\d{4}-\d\d-\d\d(-preview)?",
        "api-key",
        _openai,
        _azure_lines,
        {"api_version": "2024-10-21"},
        _azure_error(401, "Access denied due to invalid subscription key or wrong API endpoint."),
        _azure_error(404, "Resource not found"),
    ),
    "anthropic": Vendor(
        "anthropic/claude-sonnet-4-6",
        "",
        "/v1/messages",
        "x-api-key",
        _anthropic,
        lambda step, _, body: message_lines(step, body),
        no_key=(401, {"type": "error", "error": {"type": "authentication_error", "message": "x-api-key is required"}}),
        no_url=(404, {"type": "error", "error": {"type": "not_found_error", "message": "Not Found"}}),
    ),
    "mistral": Vendor(
        "mistral/mistral-large-latest",
        "/v1",
        "/chat/completions",
        "authorization",
        _mistral,
        _mistral_lines,
        no_key=(401, {"detail": "Unauthorized"}),
        no_url=(404, {"detail": "Not Found"}),
    ),
    "gemini": Vendor(
        "gemini/gemini-3-pro-preview",
        "/v1beta",
        r"/models/[a-z0-9.-]+:streamGenerateContent\?alt=sse",
        "x-goog-api-key",
        _gemini,
        lambda step, model, _: gemini_lines(step, model),
        no_key=(403, [{"error": {"code": 403, "message": "no identity", "status": "PERMISSION_DENIED"}}]),
        no_url=(404, [{"error": {"code": 404, "message": "Not Found", "status": "NOT_FOUND"}}]),
    ),
    "ollama": Vendor(
        "ollama_chat/qwen3:8b",
        "",
        "/api/chat",
        "",
        _ollama,
        lambda step, model, _: ollama_lines(step, model),
        no_url=(404, {"error": "not found"}),
        media="application/x-ndjson",
    ),
}


class VendorsDouble(ProviderDouble):
    def where(self, name: str) -> dict[str, JsonValue]:
        """The parameters of a request to a vendor."""
        vendor = VENDORS[name]
        return {"api_base": f"http://127.0.0.1:{self.port}/{name}{vendor.base}", "api_key": "k", **vendor.params}

    async def _complete(self, request: Request) -> Response:
        _, name, rest = request.url.path.split("/", 2)
        vendor, seen = VENDORS[name], await self._arrived(request)
        url = f"/{rest}" + (f"?{request.url.query}" if request.url.query else "")
        refused: Refusal | None = None
        if not re.fullmatch(re.escape(vendor.base) + vendor.url, url):
            refused = vendor.no_url
        elif vendor.header and not request.headers.get(vendor.header):
            refused = vendor.no_key
        elif (error := vendor.refusal(seen.body, url)) is not None:
            refused = 400, error
        step = None if refused else await self._step(seen)
        if step is None:
            status, answer = refused or (418, {"error": "the script of the double has no step for this request"})
            seen.outcome = str(status)
            return JSONResponse(answer, status)
        if step.body is not None:
            return await self._serve(step, seen, request)
        seen.outcome = "answered"
        model = vendor.model.partition("/")[2]
        return StreamingResponse(_sent(vendor.lines(step, model, seen.body)), media_type=vendor.media)


async def _sent(lines: Iterator[bytes]) -> AsyncIterator[bytes]:
    for each in lines:
        yield each
