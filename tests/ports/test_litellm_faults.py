"""Every way in which a provider goes wrong has its typed end, its refusals are kept, its requests obey the egress."""

import asyncio
import importlib
import inspect
import json
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import yaml
from pydantic import JsonValue
from structlog.testing import capture_logs

from perdure.activities.providers.errors import PROVIDER, UNEXPECTED, problem_of, provider_error
from perdure.activities.providers.provider import Complete, Provider, ProviderRequest
from perdure.activities.providers.registry import first_that_answers
from perdure.contracts.errors import PerdureError, UpstreamRejected, UpstreamUnavailable
from perdure.settings import Settings
from tests.doubles.hostile_target import MEBI, Talk, bomb, floods, says, threaded
from tests.doubles.providers.client import UNWARNED, RecordingClient
from tests.doubles.providers.script import Fault, Step
from tests.doubles.providers.server import ProviderDouble
from tests.doubles.resolver import Names

if TYPE_CHECKING:
    from perdure.activities.providers.litellm_provider import LiteLLMProvider  # takes seconds: the fixture imports it

pytestmark = UNWARNED
OPENAI, ANTHROPIC = "openai/gpt-4o-mini", "anthropic/claude-sonnet-4-5"
WIRES = {OPENAI: "/openai/v1/chat/completions", ANTHROPIC: "/anthropic/v1/messages"}
CUT_OFF = (Fault.CUT, Fault.NO_FINISH, Fault.TRUNCATED_JSON, Fault.EMPTY_BODY)
DOWN = (Fault.RESET, Fault.RESET_AT_ONCE, Fault.DEEP_JSON, Fault.WRONG_TYPES, Fault.ERROR_IN_STREAM)
AFTER_TEXT: dict[Fault, tuple[type[PerdureError], str]] = {
    **dict.fromkeys(DOWN, (UpstreamUnavailable, "model_unavailable")),
    **dict.fromkeys(CUT_OFF, (UpstreamUnavailable, "model_cut_off")),
    Fault.HTML: (UpstreamRejected, "model_setup"),
    Fault.GARBAGE: (UpstreamUnavailable, "model_unreadable"),
    Fault.UNKNOWN_FINISH: (UpstreamUnavailable, "model_unreadable"),
    Fault.NO_CALLS: (UpstreamUnavailable, "model_unreadable"),
    Fault.NAMELESS_CALL: (UpstreamUnavailable, "model_unreadable"),
    Fault.HANG: (UpstreamUnavailable, "model_timeout"),
    Fault.HANG_AT_ONCE: (UpstreamUnavailable, "model_timeout"),
    Fault.ENDLESS: (UpstreamRejected, "answer_too_large"),
    Fault.HUGE_ARGUMENTS: (UpstreamRejected, "answer_too_large"),
}
FAULTS = {**AFTER_TEXT, Fault.EMPTY: (UpstreamUnavailable, "model_empty_answer")}
FIRST = (Fault.RESET_AT_ONCE, Fault.CUT, Fault.HTML)
"""Of those before any text; `make soak` has them all."""
STATUSES: dict[int, tuple[type[PerdureError], str]] = {
    **dict.fromkeys((400, 418, 422), (UpstreamRejected, "model_bad_request")),
    **dict.fromkeys((401, 403), (UpstreamRejected, "model_auth")),
    **dict.fromkeys((409, 500, 502, 503), (UpstreamUnavailable, "model_unavailable")),
    **dict.fromkeys((301, 307), (UpstreamRejected, "model_setup")),
    **dict.fromkeys((408, 504), (UpstreamUnavailable, "model_timeout")),
    402: (UpstreamRejected, "model_billing"),
    404: (UpstreamRejected, "model_not_found"),
    413: (UpstreamRejected, "context_overflow"),
    429: (UpstreamUnavailable, "model_rate_limited"),
    529: (UpstreamUnavailable, "model_overloaded"),
}


@pytest.mark.parametrize(("text", "fault"), [
    *(("one two ", fault) for fault in AFTER_TEXT),
    ("", Fault.EMPTY),
    *(pytest.param("", fault, marks=() if fault in FIRST else pytest.mark.soak) for fault in AFTER_TEXT),
])  # fmt: skip
async def test_a_fault_raises_a_typed_error_without_an_answer(client: RecordingClient, text: str, fault: Fault) -> None:
    family, code = FAULTS[fault]
    error = await client.fail(Step(text=text, fault=fault), seconds=1.0 if "hang" in fault else 40.0)
    assert (type(error), error.code) == (family, code)
    assert not any(isinstance(chunk, Complete) for chunk in client.chunks)
    assert len(client.double.requests) == 1


JSON, SSE, HTML, TEXT = "application/json", "text/event-stream", "text/html", "text/plain"
NO_SERVER = "This is not a model server; check the agent's `api_base`"
PROXY = "A server before the model refused the request as too large"
ANSWERS: dict[str, tuple[int, str, str, str, str]] = {
    "a login page": (200, HTML, "<html>Login</html>", "model_setup", NO_SERVER),
    "an empty body": (200, JSON, "", "model_setup", NO_SERVER),
    "an empty stream": (200, SSE, "", "model_cut_off", "stream ended before"),
    "other JSON": (200, JSON, '{"hello": "world"}', "model_setup", NO_SERVER),
    "a word": (200, TEXT, "It works", "model_setup", NO_SERVER),
    "no choices": (200, JSON, '{"choices": []}', "model_unreadable", "it has no choices"),
    "no path": (404, JSON, '{"detail": "Not Found"}', "model_not_found",
                "PATH; check the agent's model name or its `api_b"),
    "a missing page": (
        404, HTML, "<html>nothing</html>", "model_not_found", "PATH; check the agent's model name or its"),
    "no such method": (
        405, JSON, '{"detail": "Method Not Allowed"}', "model_setup", "PATH; check the agent's `api_base`"),
    "a proxy's limit": (413, HTML, "<html>413 Request Entity Too Large</html>", "model_bad_request", PROXY),
    "a gateway's page": (502, HTML, "<html>Bad gateway</html>", "model_unavailable", "failed with status 502"),
}  # fmt: skip


@pytest.mark.parametrize("model", WIRES)
@pytest.mark.parametrize("answer", ANSWERS)
async def test_an_answer_of_no_model_names_the_server(client: RecordingClient, model: str, answer: str) -> None:
    status, media, body, code, told = ANSWERS[answer]
    with capture_logs() as logs:
        error = await client.fail(Step(status=status, media=media, body=body, times=None), model=model)
    details, path = problem_of(error, model).details, WIRES[model]
    assert (error.code, told.replace("PATH", path) in error.message) == (code, True), error.message
    assert (details["host"], details["status"]) == (f"127.0.0.1:{client.double.port}", status)
    assert (details["model"], details["content_type"]) == (model, media)
    assert details.get("path") == (path if status in (404, 405) else None)
    warned = [log for log in logs if log["event"] == "model_call_failed" and log["log_level"] == "warning"]
    assert [(log["code"], bool(log["errors"])) for log in warned] == [(code, True)]
    assert len(client.double.requests) == 1


@pytest.mark.parametrize("model", WIRES)
@pytest.mark.parametrize("status", [400, 500])
async def test_a_plain_sentence_is_shown(client: RecordingClient, model: str, status: int) -> None:
    error = await client.fail(Step(status=status, media=TEXT, body="upstream says no", times=None), model=model)
    assert problem_of(error, model).details == {"model": model, "status": status, "sentence": "upstream says no"}


def events(*data: JsonValue) -> str:
    return "".join(f"data: {json.dumps(each)}\n\n" for each in data)


HALF: JsonValue = {"model": "m", "choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": None}]}
WHOLE: dict[str, JsonValue] = {"id": "1", "type": "message", "role": "assistant", "model": "m", "stop_reason": None}
ENDS: dict[str, tuple[str, JsonValue]] = {
    "[DONE]": (OPENAI, events(HALF) + "data: [DONE]\n\n"),
    "message_stop": (ANTHROPIC, events(
        {"type": "message_start", "message": {**WHOLE, "content": [], "usage": {"input_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": None}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    )),
    "one body": (ANTHROPIC, {**WHOLE, "content": [{"type": "text", "text": "Hi"}], "usage": {"input_tokens": 1}}),
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
async def test_an_end_without_a_reason_is_cut_off(client: RecordingClient, end: str) -> None:
    model, body = ENDS[end]
    error = await client.fail(Step(body=body, media=SSE if isinstance(body, str) else JSON), model=model)
    assert (error.code, client.text) == ("model_cut_off", "Hi")


@pytest.mark.parametrize("model", WIRES)
async def test_a_steady_answer_is_limited_as_a_whole_and_a_silent_one_by_its_silence(
    client: RecordingClient, model: str
) -> None:
    steady = Step(text="word " * 16, token_seconds=0.1)
    await client.ask(steady, model=model, idle_seconds=0.8)
    assert client.text == steady.text
    late = await client.fail(steady, model=model, seconds=1.0)
    assert (type(late), late.code, client.text[:9]) == (UpstreamRejected, "model_timeout", "word word")
    assert "limit of 1 s for a whole answer" in late.message and "`answer_seconds`" in late.message
    details = problem_of(late, model).details
    assert (details["limit"], details["limit_seconds"], details["still_answering"]) == ("total", 1.0, True)
    for silent in (Step(text="one two", fault=Fault.HANG), Step(fault=Fault.HANG_AT_ONCE)):
        idle = await client.fail(silent, model=model, idle_seconds=0.8)
        assert (type(idle), idle.code) == (UpstreamUnavailable, "model_timeout")
        assert "sent nothing for 0.8 s" in idle.message
        assert problem_of(idle, model).details["limit"] == "idle"


@pytest.mark.parametrize("status", STATUSES)
async def test_an_error_status_is_not_retried_and_has_its_code(client: RecordingClient, status: int) -> None:
    error = await client.fail(Step(status=status, retry_after="7", times=None))
    assert (type(error), error.code) == STATUSES[status]
    assert status not in (429, 503) or getattr(error, "retry_after_seconds", None) == 7.0
    assert len(client.double.requests) == 1
    assert "told to say" not in str(error), "the provider's own words may quote the payload"


@pytest.mark.parametrize("model", WIRES)
async def test_an_unreachable_server_is_unavailable_and_named(litellm_provider: Provider, model: str) -> None:
    with ProviderDouble() as closed:
        gone = RecordingClient(litellm_provider, closed)
    where = {f"127.0.0.1:{closed.port}": "accepts no connection", "no-such-host.invalid:80": "does not resolve"}
    for host, told in where.items():
        error = await gone.fail(Step(text="hi"), model=model, api_base=f"http://{host}")
        assert (type(error), error.code, closed.requests) == (UpstreamUnavailable, "model_unavailable", [])
        assert f"{host} {told}" in error.message
        assert problem_of(error, model).details == {"model": model, "host": host}


async def test_the_first_model_to_answer_is_used(
    provider_double: ProviderDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perdure.activities.providers.litellm_provider import LiteLLMProvider

    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-test")
    monkeypatch.setenv("OPENAI_BASE_URL", provider_double.api_base)
    names = ("openai/gpt-4o", "openai/gpt-4o-mini", "openai/o3")
    async with aclosing(LiteLLMProvider(Settings(_env_file=None).outbound_to_providers())) as provider:
        provider_double.script(Step(status=401, code="invalid_api_key"), Step(text="ready"))
        assert await first_that_answers(names, provider, {}) == "openai/gpt-4o-mini"
        provider_double.script(Step(status=401, code="invalid_api_key", times=None))
        with pytest.raises(SystemExit) as ended:
            await first_that_answers(names, provider, {})
    assert all(name in str(ended.value) for name in names) and "model_auth" in str(ended.value)


@pytest.mark.parametrize("name", ["num_retries", "max_retries", "stream", "fallbacks", "timeout", "model"])
async def test_an_agent_cannot_set_reserved_parameters_and_must_name_a_provider(
    client: RecordingClient, name: str
) -> None:
    params: dict[str, Any] = {name: "no-such-thing" if name == "model" else 3}
    with pytest.raises(UpstreamRejected) as raised:
        await client.ask(Step(text="hi"), **params)
    assert raised.value.code == "model_setup" and client.double.requests == []


def _raised() -> Iterator[type[Exception]]:
    for name in ("openai", "litellm.exceptions"):
        for _, member in inspect.getmembers(importlib.import_module(name), inspect.isclass):
            if issubclass(member, Exception) and not issubclass(member, Warning):
                yield member


def test_every_exception_class_of_litellm_and_openai_is_mapped(litellm_provider: Provider) -> None:
    unknown = [kind for kind in _raised() if provider_error(kind.__new__(kind)).code == UNEXPECTED.code]
    assert unknown == []
    assert len(list(_raised())) > 40
    for name in PROVIDER:  # each row names a class that exists
        module, _, attribute = name.rpartition(".")
        assert issubclass(getattr(importlib.import_module(module), attribute), Exception), name


def test_litellm_is_configured_to_send_once_and_report_nothing(litellm_provider: Provider) -> None:
    import litellm

    importlib.import_module("litellm.llms.vertex_ai.context_caching.vertex_ai_context_caching")
    assert litellm.num_retries is None and litellm.disable_aiohttp_transport is True
    assert litellm.failure_callback == litellm.callbacks == []
    # The import above, which a call to Vertex makes too, adds LiteLLM's own cache, which is off.
    assert litellm.success_callback == ["cache"] and litellm.cache is None


CASES: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text())["cases"]
KEY = "sk-secret-123"


def tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
async def test_a_refusal_has_its_code_and_keeps_what_helps(client: RecordingClient, case: dict[str, Any]) -> None:
    model = case["model"]
    media = "text/event-stream" if case["status"] == 200 else "application/json"
    step = Step(status=case["status"], body=case["body"], media=media)
    tools = tuple(tool(name) for name in case.get("tools", ()))
    asking = client.ask(step, model=model, tools=tools, api_key=KEY, **case.get("params", {}))
    if case["code"] == "content_refused":
        await asking
        assert client.complete.finish_reason == "content_filter"
        return
    with pytest.raises(PerdureError) as raised:
        await asking
    error, details = raised.value, case["details"]
    if "host" in details:
        details = {**details, "host": f"127.0.0.1:{client.double.port}"}
    assert error.code == case["code"]
    assert problem_of(error, model).details == {"model": model, **details}
    assert error.details.get("status") == details.get("status"), "a status that LiteLLM invents is not shown"
    named = details.get("tools", [details.get("param", "")])
    assert error.code != "model_bad_request" or all(each in error.message for each in named)
    assert KEY not in repr(error)
    assert len(client.double.requests) == 1


HOSTS = {
    "openai/gpt-4o-mini": "api.openai.com",
    "anthropic/claude-sonnet-4-5": "api.anthropic.com",
    "mistral/mistral-small-latest": "api.mistral.ai",
    "gemini/gemini-2.5-flash": "generativelanguage.googleapis.com",
}
VENDORS = tuple(HOSTS)
two_vendors = pytest.mark.parametrize(
    "model", [*VENDORS[:2], *(pytest.param(each, marks=pytest.mark.soak) for each in VENDORS[2:])]
)
"""In `make soak` all of them."""
SSE, JSON = "content-type: text/event-stream", "content-type: application/json"


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)


@pytest.fixture
def provider(litellm_provider: "LiteLLMProvider") -> "LiteLLMProvider":
    """Under rules that name nothing."""
    return litellm_provider


async def fail(provider: "LiteLLMProvider", model: str, api_base: str = "", seconds: float = 20.0) -> PerdureError:
    where = {"api_base": api_base} if api_base else {}
    request = ProviderRequest(
        model, ({"role": "user", "content": "hello"},), (), {**where, "api_key": "k"}, seconds, "turn-1.m1"
    )
    with pytest.raises(PerdureError) as raised:
        async with aclosing(provider.stream(request)) as stream:
            async for _ in stream:
                pass
    return raised.value


HOSTILE: dict[str, Talk] = {
    "a huge body": floods(200, b"x" * MEBI, JSON),
    "a bomb": says(200, bomb(), JSON, "content-encoding: gzip"),
    "an endless event": floods(200, b"data: x\n", SSE),
    "brotli": says(200, b"x", SSE, "content-encoding: br"),
}


@two_vendors
@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_success_whose_body_is_too_large_is_refused(provider: "LiteLLMProvider", model: str, kind: str) -> None:
    process = psutil.Process()
    with threaded(HOSTILE[kind]) as made:
        before = process.memory_info().rss
        error = await fail(provider, model, made.url)
        grown = (process.memory_info().rss - before) // MEBI
    assert (type(error), error.code) == (
        UpstreamRejected,
        "answer_encoding" if kind == "brotli" else "answer_too_large",
    )
    assert len(made.heads) == 1 and grown < 150


@pytest.mark.parametrize("model", VENDORS)
async def test_no_redirect_to_another_host_or_to_metadata_is_followed(provider: "LiteLLMProvider", model: str) -> None:
    with threaded(says()) as other:
        with threaded(says(307, b"", f"location: {other.url}/v1/chat/completions")) as made:
            redirected = await fail(provider, model, made.url)
    metadata = await fail(provider, model, "http://169.254.169.254/v1")
    for error in (redirected, metadata):
        assert (type(error), error.code, error.retryable) == (UpstreamRejected, "egress_refused", False)
    assert other.heads == []


@two_vendors
async def test_a_lost_connection_is_one_request(provider: "LiteLLMProvider", model: str) -> None:
    with threaded(lambda *_: asyncio.sleep(0)) as made:
        error = await fail(provider, model, made.url)
    assert (type(error), error.code, len(made.heads)) == (UpstreamUnavailable, "model_unavailable", 1)


@two_vendors
async def test_a_redirect_on_the_same_host_is_followed_until_it_is_a_loop(
    provider: "LiteLLMProvider", model: str
) -> None:
    answers = [says(307, b"", "location: /moved", "connection: close"), says(401, b"{}", JSON, "connection: close")]
    with threaded(lambda *streams: answers[min(len(made.heads), 2) - 1](*streams)) as made:
        followed = await fail(provider, model, made.url)
    assert (followed.code, [head.split(" ")[1] for head in made.heads][1:]) == ("model_auth", ["/moved"])
    with threaded(answers[0]) as made:
        looped = await fail(provider, model, made.url)
    assert (type(looped), looped.code) == (UpstreamRejected, "model_setup")
    assert looped.message.startswith(f"The redirects of 127.0.0.1:{made.port} do not end")


@pytest.mark.parametrize("model", VENDORS)
@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.7", "169.254.169.254"])
async def test_no_private_address_is_used(provider: "LiteLLMProvider", names: Names, model: str, address: str) -> None:
    asked = names(HOSTS[model], [address])
    error = await fail(provider, model)
    assert (type(error), error.code) == (UpstreamRejected, "egress_refused")
    assert set(asked) == {HOSTS[model]} and address not in error.message


@pytest.mark.parametrize("model", VENDORS)
async def test_no_proxy_is_inherited(provider: "LiteLLMProvider", model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with threaded(says()) as proxy, threaded(says(401, b"{}", JSON)) as made:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        await provider.aclose()
        error = await fail(provider, model, made.url)
        await provider.aclose()
    assert error.code == "model_auth" and proxy.heads == [] and len(made.heads) == 1


async def test_a_vendor_that_bypasses_the_transport_is_refused(provider: "LiteLLMProvider") -> None:
    error = await fail(provider, "aiohttp_openai/gpt-4o", "http://127.0.0.1:9/v1")
    assert (type(error), error.code) == (UpstreamRejected, "model_setup")


async def test_other_calls_continue_while_an_answer_floods(provider: "LiteLLMProvider") -> None:
    waits = list[float]()

    async def beat() -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.01)
            waits.append(time.monotonic() - began)

    beating = asyncio.create_task(beat())
    await asyncio.sleep(0.1)
    with threaded(HOSTILE["an endless event"]) as made:
        await fail(provider, "openai/gpt-4o-mini", made.url)
    beating.cancel()
    assert max(waits) < 2
