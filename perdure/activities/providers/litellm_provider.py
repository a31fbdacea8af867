"""Provider for all real models, through LiteLLM. Only this module and perdure/embedding/embedder.py import LiteLLM: it
takes 5 s and 200 MB (measured).

Relevant behavior of LiteLLM (1.106, each tested): it invents the finish reason `stop` if the stream just ended or if it
does not know the provider's. It drops refusals and contents of a wrong type. It wraps errors of a running stream. It
stores the headers of an error separately. Its retries, fallbacks, callbacks and network lookups are off: one call here
is one request.
"""

import asyncio
import copy
import importlib
import logging
import os
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from typing import Any

import structlog
from pydantic import JsonValue

# Set before the import: no download of price lists, and no reading of .env, which only perdure/settings.py reads.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS"] = "True"
os.environ["LITELLM_MODE"] = "PRODUCTION"

import litellm
from litellm.litellm_core_utils import core_helpers
from litellm.llms.ollama.common_utils import OllamaModelInfo

from perdure.activities.providers.errors import CONTENT_REFUSED, provider_error
from perdure.activities.providers.failures import explained, total_exceeded
from perdure.activities.providers.masking import RequestTexts, mask
from perdure.activities.providers.pieces import text_of_parts
from perdure.activities.providers.provider import (
    FAILED_REASONS,
    Chunk,
    Delta,
    Draft,
    ProviderRequest,
    cache_written,
    max_input_tokens,
    max_output_tokens,
    microusd,
    plausible_usage,
    tokens_of_request,
)
from perdure.activities.providers.refusals import StreamError, causes
from perdure.activities.providers.thinking import ThinkingReader
from perdure.activities.providers.tool_refusals import with_refused_tools
from perdure.activities.providers.wire import StreamAdapter
from perdure.contracts.calls import OutputForm
from perdure.contracts.errors import PerdureError, UpstreamRejected
from perdure.contracts.turns import Usage
from perdure.core.agents.models import RESERVED_PARAMETERS, is_claude, with_thinking
from perdure.core.agents.tool_schemas import is_strict
from perdure.core.budgets import RequestBound
from perdure.core.egress import NamedHost, Outbound, named_by_url
from perdure.egress import Call, Exchange, calling
from perdure.egress.httpx_transport import UNGUARDED, guard

litellm.suppress_debug_info = True
litellm.disable_aiohttp_transport = True  # one HTTP client, whose exceptions `provider_error` knows
litellm.disable_hf_tokenizer_download = True  # else a model named llama-3 blocks the event loop (23 s without network)
logging.getLogger("LiteLLM").setLevel(logging.CRITICAL)  # its log lines may quote the payload

_log = structlog.get_logger(__name__)

_KEPT_FINISH_REASONS = {
    "refusal": "refusal",
    "pause_turn": "pause_turn",
    "model_context_window_exceeded": "length",
    "model_length": "length",
    **{reason: reason for reason in FAILED_REASONS},
}
"""Finish reasons that LiteLLM's table would turn into `content_filter` or `stop`. Cut or failed answers would then look
whole."""


class _FinishReasons(dict[str, str]):
    """LiteLLM's table of finish reasons. Unknown ones stay as they are, and are not turned into `stop`."""

    def get(self, key: str, default: object = None) -> Any:
        """Returns the entry of `key`, or `key` itself."""
        return super().get(key, key)


NO_NAMED_HOSTS = Outbound()
_STREAM_OVERHEAD = 4
"""A streamed response can be this many times as large as an unstreamed one: each token arrives in an event of 300
bytes."""

_FAILURE_BYTES = 64 * 1024
"""Limit of an error's body, because LiteLLM searches it repeatedly."""


class _OllamaConfig(litellm.OllamaChatConfig):
    """Names the tool of each result. LiteLLM sends an id instead, which no call has at Ollama, so that a model could
    not assign the results of parallel calls."""

    def transform_request(self, model: str, messages: Any, *rest: Any, **named: Any) -> dict[str, Any]:
        """Returns the body of a request, with the name of the tool in place of the call's id in each tool message."""
        names = {call["id"]: call["function"]["name"] for each in messages for call in each.get("tool_calls") or ()}
        body = super().transform_request(model, messages, *rest, **named)
        for message in body["messages"]:
            if message["role"] == "tool":
                message["tool_name"] = names.get(message.pop("tool_call_id", ""), "")
        return body


def _free_of_charge(_: object, model: str, **__: object) -> dict[str, Any]:
    """Replaces a blocking request to the Ollama server after each answer. The answer is the one that LiteLLM gives if
    the server is unavailable."""
    limits = dict.fromkeys(("max_tokens", "max_input_tokens", "max_output_tokens"))
    costs = dict.fromkeys(("input_cost_per_token", "output_cost_per_token"), 0.0)
    return {"key": model, "litellm_provider": "ollama", "mode": "chat", **costs, **limits}


class LiteLLMProvider:
    """A provider for every model that LiteLLM knows. Create it before the event loop serves requests, because it
    blocks.

    Its requests follow the rules of `outbound`, and can also go to the `api_base` in an agent's own file.
    """

    def __init__(self, outbound: Outbound = NO_NAMED_HOSTS) -> None:
        guard(litellm, outbound)
        reasons: Any = _FinishReasons(core_helpers._FINISH_REASON_MAP, **_KEPT_FINISH_REASONS)
        core_helpers._FINISH_REASON_MAP = reasons  # type: ignore[misc]
        vendor: Any = litellm
        vendor.OllamaChatConfig = _OllamaConfig
        # Its detector of loops also stops whole answers, such as wide tables. Budgets limit an answer.
        vendor.REPEATED_STREAMING_CHUNK_LIMIT = sys.maxsize
        OllamaModelInfo.get_runtime_model_info = _free_of_charge  # type: ignore[assignment,method-assign]
        self._stream_bytes = _STREAM_OVERHEAD * outbound.answer_bytes
        self._unpriced: set[str] = set()
        # LiteLLM would load these in its first call and block the event loop for 1.5 s (measured).
        importlib.import_module("openai.resources.chat")
        litellm.token_counter(model="gpt-4o", text="warm")

    def upper_bound(self, request: ProviderRequest) -> RequestBound:
        """Returns the upper bound by LiteLLM's table. The request is assumed to read nothing from a cache, and to be
        written to one if that costs more.

        The table is read directly, because LiteLLM's own lookups query some vendors over the network.
        """
        card = _price_card(request.model)
        output_tokens = max_output_tokens(_params(request), card.get("max_output_tokens") or card.get("max_tokens"))
        if output_tokens is None:
            return RequestBound(None, None)
        input_tokens = max_input_tokens(request)
        try:
            costs = litellm.cost_per_token(
                model=request.model, prompt_tokens=input_tokens, completion_tokens=output_tokens
            )
        except Exception:  # LiteLLM raises a plain Exception for a model without a price
            return RequestBound(input_tokens + output_tokens, None)
        cache_write_cost = input_tokens * float(card.get("cache_creation_input_token_cost") or 0)
        return RequestBound(input_tokens + output_tokens, microusd(max(costs[0], cache_write_cost) + costs[1]))

    def context_tokens(self, model: str) -> int | None:
        """Returns the maximum input tokens by LiteLLM's table, which is read directly, as in `upper_bound`."""
        tokens = _price_card(model).get("max_input_tokens")
        return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) else None

    async def stream(self, request: ProviderRequest) -> AsyncGenerator[Chunk, None]:
        """Sends one request to the provider and streams its response, as `Provider` describes."""
        draft = Draft(request.max_tokens, continues=request.continues, thinking=ThinkingReader(request.model))
        reading = _Reading(request, draft)
        try:
            async with aclosing(reading.deltas(self._egress(request, reading.met))) as deltas:
                async for delta in deltas:
                    yield delta
        except Exception as error:
            failure = reading.failure_of(error)
            if failure.code == CONTENT_REFUSED:
                usage = self._usage(request, draft) if draft.model else Usage()  # not read, not billed
                draft.model = draft.model or request.model
                for last_chunk in draft.refuse("content_filter", usage):
                    yield last_chunk
                return
            if isinstance(error, PerdureError) or reading.finish_reason is None:
                failure.details["output_tokens"] = draft.estimated_tokens()
                raise failure from error
            # The answer is complete; only its usage or its end was unreadable. A retry would be billed twice.
            _log.warning("model_end_unreadable", model=request.model, code=failure.code)
        finally:
            await reading.aclose()
        draft.model = draft.model or request.model
        try:
            for last_chunk in draft.finish(reading.finish_reason, self._usage(request, draft)):
                yield last_chunk
        except PerdureError as error:
            raise reading.failure_of(error) from error

    def _egress(self, request: ProviderRequest, met: Exchange) -> Call:
        """Returns the settings of the call's HTTP request."""
        return Call(
            named=_named_hosts(request),
            stream_bytes=self._stream_bytes,
            failure_bytes=_FAILURE_BYTES,
            idle_seconds=request.idle_seconds if request.idle_seconds < request.timeout_seconds else None,
            adapter=StreamAdapter(),
            exchange=met,
        )

    async def aclose(self) -> None:
        """Closes LiteLLM's connections. The provider can be used again."""
        vendor: Any = litellm  # these two have no types
        await vendor.close_litellm_async_clients()
        vendor.in_memory_llm_clients_cache.flush_cache()

    def _usage(self, request: ProviderRequest, draft: Draft) -> Usage:
        """Returns the reported tokens if they are plausible, and their cost by LiteLLM's table."""
        input_tokens = tokens_of_request(request)
        usage = plausible_usage(draft.reported_usage, input_tokens, draft.estimated_tokens())
        written_tokens = cache_written(draft.reported_usage, usage)
        return usage.model_copy(update={"cost_microusd": self.cost_microusd(request.model, usage, written_tokens)})

    def cost_microusd(self, model: str, usage: Usage, cache_written_tokens: int = 0) -> int:
        """Returns the cost by LiteLLM's table. A model without a price costs 0 and is logged once."""
        try:
            parts = litellm.cost_per_token(
                model=model,
                prompt_tokens=usage.input_tokens,
                completion_tokens=usage.output_tokens,
                cache_read_input_tokens=usage.cached_tokens,
                cache_creation_input_tokens=cache_written_tokens,
            )
        except Exception:  # LiteLLM raises a plain Exception for a model without a price
            if model not in self._unpriced:
                self._unpriced.add(model)
                _log.warning("model_without_price", model=model, cost_microusd=0)
            return 0
        return microusd(sum(parts))


class _Reading:
    """One answer while it is read."""

    def __init__(self, request: ProviderRequest, draft: Draft) -> None:
        self.met = Exchange()
        self._request, self._draft = request, draft
        self._response: Any = None
        self._clock = asyncio.get_running_loop().time
        self._grew_at = self._clock()
        self._deadline = self._grew_at + request.timeout_seconds

    async def deltas(self, call: Call) -> AsyncGenerator[Delta, None]:
        """Sends the request and yields the deltas of the answer."""
        async with asyncio.timeout_at(self._deadline):
            with calling(call):
                response = self._response = await litellm.acompletion(**_arguments(self._request))
        if hasattr(response.completion_stream, "__anext__"):  # Bedrock's is a plain iterator
            response.completion_stream = _CheckedStream(response.completion_stream, self._draft)
        chunks = aiter(response)
        while True:
            async with asyncio.timeout_at(self._deadline):
                with calling(call):  # some vendors' requests are only sent here
                    chunk = await anext(chunks, None)
            if chunk is None:
                return
            self._grew_at = self._clock()
            for delta in self._draft.add(chunk):
                yield delta

    @property
    def finish_reason(self) -> object:
        """The provider's own finish reason; None if it sent none."""
        for name in ("received_finish_reason", "intermittent_finish_reason"):
            if reason := getattr(self._response, name, None):
                return reason
        return None

    def failure_of(self, error: Exception) -> PerdureError:
        """Returns the error of a failed call, and logs it."""
        request, met, now = self._request, self.met, self._clock()
        texts = RequestTexts(_secrets(request), _names(request), list(_strings(request.messages)))
        if now >= self._deadline and not isinstance(error, PerdureError):
            failure = total_exceeded(request.timeout_seconds, now - self._grew_at)
        else:
            failure = with_refused_tools(provider_error(error, texts), str(error), request.tools)
        began = self._draft.estimated_tokens() > 0 or self.finish_reason is not None
        failure = explained(failure, error, met, began=began)
        known = {"model": request.model, "code": failure.code, "host": met.host, "status": met.status}
        kinds = [type(each).__qualname__ for each in causes(error)]
        _log.warning("model_call_failed", **known, content_type=met.media, errors=kinds)
        _log.debug("model_call_failed_with", model=request.model, vendor_message=mask(str(error), texts))
        return failure

    async def aclose(self) -> None:
        """Ends the request."""
        if self._response is not None:
            await self._response.aclose()


class _CheckedStream:
    """Wraps a vendor's stream before LiteLLM reads it. Refusals become text; contents of a wrong type become an error.

    Chunks that have already arrived are read without a pause, at about 0.6 ms of CPU each. After an empty chunk,
    LiteLLM reads the next one by itself. So each chunk yields to the other calls of this process and their heartbeats.
    """

    def __init__(self, raw: Any, draft: Draft) -> None:
        self._raw = raw
        if hasattr(raw, "chunk_parser"):
            raw.chunk_parser = _checked_parser(raw.chunk_parser)
        self._draft = draft
        aiter(raw)  # Anthropic's stream cannot be read before this call

    def __aiter__(self) -> "_CheckedStream":
        return self

    async def __anext__(self) -> Any:
        await asyncio.sleep(0)
        chunk = await anext(self._raw)
        for choice in getattr(chunk, "choices", None) or ():
            delta: Any = getattr(choice, "delta", None)
            sent, refusal = getattr(delta, "content", None), getattr(delta, "refusal", None)
            content = text_of_parts(sent)
            if not isinstance(content, str | None):
                raise ValueError("the content is not text")
            if isinstance(refusal, str):
                self._draft.refused = self._draft.refused or bool(refusal)
                delta.content = (content or "") + refusal
            elif content is not sent:
                delta.content = content
        return chunk

    async def aclose(self) -> None:
        close = getattr(self._raw, "aclose", None) or getattr(self._raw, "close", None)
        if close is not None:
            await close()


def _checked_parser(parse: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `parse`, a vendor's parser of chunks, with two corrections. LiteLLM drops the code of an error
    object. It invents `stop` if an answer of Anthropic ends without a reason."""

    def parse_or_raise(chunk: Any) -> Any:
        if isinstance(chunk, dict) and chunk.get("error"):
            raise StreamError(chunk)
        parsed = parse(chunk)
        if isinstance(chunk, dict) and chunk.get("type") == "message_delta":
            end: Any = chunk.get("delta")
            if not (isinstance(end, dict) and end.get("stop_reason")):
                for choice in getattr(parsed, "choices", None) or ():
                    choice.finish_reason = None
        return parsed

    return parse_or_raise


def _secrets(request: ProviderRequest) -> list[str]:
    """Returns the values among the parameters that a provider's sentence must not repeat: keys, tokens, headers."""
    held = [request.params, request.params.get("extra_headers")]
    named = [(name, value) for each in held if isinstance(each, dict) for name, value in each.items()]
    words = ("key", "token", "secret", "password", "authorization", "credential", "cookie")
    values = [value for name, value in named if isinstance(value, str) and any(word in name.lower() for word in words)]
    return [*values, *(value.rpartition(" ")[2] for value in values)]  # without a scheme such as Bearer


def _names(request: ProviderRequest) -> frozenset[str]:
    """Returns the names in the request that a provider's sentence can repeat: of its model, parameters and tools, and
    the keys of their schemas."""
    parts = request.model.split("/")
    model_names = ("/".join(parts[start:]) for start in range(len(parts)))
    functions: list[Any] = [tool["function"] for tool in request.tools]
    return frozenset((*model_names, *request.params, *(each["name"] for each in functions), *_keys(functions)))


def _keys(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from value
    if isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _keys(each)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(each)


def _price_card(model: str) -> Mapping[str, Any]:
    """Returns the model's row in LiteLLM's table, or an empty mapping. The table names some models with their provider
    and some without."""
    try:
        bare, provider, _, _ = litellm.get_llm_provider(model)
    except Exception:  # the provider is unknown; the model's call will report it
        return {}
    table: Mapping[str, Mapping[str, Any]] = litellm.model_cost
    return table.get(model) or table.get(f"{provider}/{bare}") or table.get(bare) or {}


def _output(request: ProviderRequest) -> dict[str, Any]:
    """Returns the parameters for structured output: a schema, or a function that the model must call."""
    output = request.output
    if output is None:
        return {}
    if output.form is OutputForm.FUNCTION:
        return {"tool_choice": {"type": "function", "function": {"name": output.name}}}
    # Providers refuse a strict schema outside their subset; the answer is checked in any case.
    schema = {"name": output.name, "schema": copy.deepcopy(output.fits), "strict": is_strict(output.fits)}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _params(request: ProviderRequest) -> dict[str, JsonValue]:
    """Returns the agent's parameters. If the model supports reasoning, or the agent sets it, the parameters for it are
    added. Claude does not think before a function that it must call."""
    can_think = _price_card(request.model).get("supports_reasoning") is True
    forced = request.output is not None and request.output.form is OutputForm.FUNCTION
    reasoning = None if forced and is_claude(request.model) else request.reasoning
    return with_thinking(request.model, request.params, request.messages, reasoning, can_think=can_think)


def _named_hosts(request: ProviderRequest) -> tuple[NamedHost, ...]:
    """Returns the hosts that the agent's own file names. No text of a model is among the parameters."""
    urls = (request.params.get("api_base"), request.params.get("base_url"))
    hosts = (named_by_url(url, by_operator=False) for url in urls if isinstance(url, str))
    return tuple(host for host in hosts if host is not None)


def _arguments(request: ProviderRequest) -> dict[str, Any]:
    """Returns the arguments of the call to LiteLLM.

    Raises: UpstreamRejected (model_setup) if the agent's parameters set a reserved one or its model is unknown.
    """
    reserved = sorted(RESERVED_PARAMETERS & request.params.keys())
    if reserved:
        raise UpstreamRejected(
            "model_setup", f"Model parameters must not set {', '.join(reserved)}; remove them from model_params."
        )
    if request.model.startswith(UNGUARDED):
        raise UpstreamRejected(
            "model_setup", f"The model {request.model[:80]} is not supported; use openai/... instead."
        )
    try:
        litellm.get_llm_provider(request.model)
    except Exception as error:  # otherwise LiteLLM reports a bad request, as if a provider had rejected it
        raise UpstreamRejected(
            "model_setup", "The model's provider is unknown; write it before the model name, as in openai/gpt-4o."
        ) from error
    headers: Mapping[str, JsonValue] = {}
    extra_headers = request.params.get("extra_headers")
    if isinstance(extra_headers, dict):
        headers = extra_headers
    if request.idempotency_key:
        headers = {**headers, "Idempotency-Key": request.idempotency_key}
    return {
        **_params(request),
        "model": request.model,
        "messages": copy.deepcopy(list(request.messages)),  # LiteLLM edits its arguments
        **({"tools": copy.deepcopy(list(request.tools))} if request.tools else {}),
        **_output(request),
        "stream": True,
        "stream_options": {"include_usage": True},
        "timeout": request.timeout_seconds + 5,  # never before the deadline of `stream`
        "num_retries": 0,
        "max_retries": 0,
        "extra_headers": dict(headers),
        "_skip_mcp_handler": True,  # otherwise every call with tools imports the mcp package, which is not installed
    }
