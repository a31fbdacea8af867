"""The vendors that the provider double plays: their URLs, headers, error forms, rules and formats."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from tests.doubles.providers import wires
from tests.doubles.providers.rules import message_refusals, tool_refusals
from tests.doubles.providers.script import Body, Refusal
from tests.doubles.providers.wires import AZURE, MISTRAL, OPENAI, Wire

Error = Callable[[int, Refusal], JsonValue]


@dataclass(frozen=True, slots=True)
class Vendor:
    name: str
    own_model: str
    base: str
    """The rest of `api_base`, after its host."""
    urls: str
    """The URLs of requests after that, with their query."""
    header: str
    """The header of the key."""
    wire: Wire
    error: Error
    params: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def model(self) -> str:
        """The LiteLLM name of one of its models."""
        return f"{'ollama_chat' if self.name == 'ollama' else self.name}/{self.own_model}"

    def refusal(self, body: Body, url: str) -> JsonValue:
        """Its error for a request with a key to one of its URLs; None if it takes it."""
        refusal = refusal_of(self.name, body, url)
        return None if refusal is None else self.error(400, refusal)


def refusal_of(vendor: str, body: Body, url: str = "") -> Refusal | None:
    """The first documented rule of a vendor that a request breaks, or None."""
    found = (each for rules in (tool_refusals, message_refusals) for each in rules(vendor, body, url))
    return next(found, None)


def _openai_error(_: int, refusal: Refusal) -> JsonValue:
    kind, param = "invalid_request_error", refusal.param or None
    return {"error": {"message": refusal.message, "type": kind, "param": param, "code": refusal.code or None}}


def _azure_error(status: int, refusal: Refusal) -> JsonValue:
    if status == 400:
        return _openai_error(status, refusal)
    return {"error": {"code": str(status), "message": refusal.message}}


def _anthropic_error(status: int, refusal: Refusal) -> JsonValue:
    kind = {401: "authentication_error", 404: "not_found_error"}.get(status, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": refusal.message}}


def _mistral_error(status: int, refusal: Refusal) -> JsonValue:
    """Its codes: 3230 for the order of messages, 3280 for a call."""
    if status != 400:
        return {"detail": refusal.message}
    kinds = {"3230": "invalid_request_message_order", "3280": "invalid_function_call"}
    kind, code = kinds.get(refusal.code, "invalid_request_error"), refusal.code or None
    return {"object": "error", "message": refusal.message, "type": kind, "param": None, "code": code}


def _gemini_error(status: int, refusal: Refusal) -> JsonValue:
    """A list with the error, as Google answers streamed requests."""
    kind = {403: "PERMISSION_DENIED", 404: "NOT_FOUND"}.get(status, "INVALID_ARGUMENT")
    return [{"error": {"code": status, "message": refusal.message, "status": kind}}]


CHAT, AZURE_PARAMS = "/chat/completions", {"api_version": "2024-10-21"}
DEPLOYMENTS = r"/openai/deployments/[a-z0-9-]+/chat/completions\?api-version=\d{4}-\d\d-\d\d(-preview)?"
GENERATE = r"/models/[a-z0-9.-]+:(streamGenerateContent\?alt=sse|generateContent)"
ALL = (
    Vendor("openai", "gpt-4o-mini", "/v1", CHAT, "authorization", OPENAI, _openai_error),
    Vendor("azure", "our-gpt-4o", "", DEPLOYMENTS, "api-key", AZURE, _azure_error, AZURE_PARAMS),
    Vendor("anthropic", "claude-sonnet-4-6", "", "/v1/messages", "x-api-key", wires.ANTHROPIC, _anthropic_error),
    Vendor("mistral", "mistral-large-latest", "/v1", CHAT, "authorization", MISTRAL, _mistral_error),
    Vendor("gemini", "gemini-3-pro-preview", "/v1beta", GENERATE, "x-goog-api-key", wires.GEMINI, _gemini_error),
    Vendor("ollama", "qwen3:8b", "", "/api/chat", "", wires.OLLAMA, lambda _, refusal: {"error": refusal.message}),
)
VENDORS = {vendor.name: vendor for vendor in ALL}
