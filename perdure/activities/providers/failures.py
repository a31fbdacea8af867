"""The sentence and the details of a model call that failed without an error body of its provider: which server, which
limit, and what it sent instead of an answer."""

import json
import re
import socket
from collections.abc import Mapping

from pydantic import JsonValue

from perdure.activities.providers.refusals import causes
from perdure.contracts.errors import PerdureError, UpstreamRejected, UpstreamUnavailable
from perdure.egress import Exchange, IdleTooLong

_UNREAD = frozenset({"model_unavailable", "model_cut_off", "model_unreadable", "model_empty_answer"})
_OF_A_MODEL = re.compile(r"model|deployment", re.IGNORECASE)
_ANSWER_KEYS = frozenset(
    {
        "choices",
        "candidates",
        "message",
        "content",
        "type",
        "error",
        "response",
        "completion",
        "output",
        "delta",
        "done",
    }
)
"""Keys that an answer of some provider has. A JSON object without any of them is not a model's answer."""


def total_exceeded(seconds: float, quiet_seconds: float) -> PerdureError:
    """Returns the error of an answer that was not complete after `seconds`, and to which nothing was added in the last
    `quiet_seconds`. An answer that was still growing would take as long again, so it is not retried."""
    details: dict[str, object] = {"refusal": {"limit": "total", "limit_seconds": seconds}}
    limit = f"the limit of {seconds:g} s for a whole answer"
    if quiet_seconds > seconds / 2:
        message = f"The model did not respond in time: {limit} ended, after {quiet_seconds:.0f} s without a word."
        return UpstreamUnavailable("model_timeout", message, details)
    message = f"The model was still answering when {limit} ended; ask for less, or raise the agent's `answer_seconds`."
    return UpstreamRejected("model_timeout", message, {"refusal": {**_refusal(details), "still_answering": True}})


def explained(error: PerdureError, cause: Exception | None, met: Exchange, *, began: bool) -> PerdureError:
    """Returns the error with what the exchange `met` explains: another error if it shows another meaning, and the
    server in the details. `began` is true if a part of an answer was read. A provider's own sentence stays."""
    told = _refusal(error.details)
    if not met.host or not isinstance(error, UpstreamUnavailable | UpstreamRejected):
        return error
    if told.get("sentence") and not _blames_path(told):
        return error
    chain = list(causes(cause)) if cause is not None else []
    names = {f"{base.__module__}.{base.__qualname__}" for each in chain for base in type(each).__mro__}
    succeeded = met.status is not None and 200 <= met.status < 300
    if "httpx.TooManyRedirects" in names:
        message = f"The redirects of {met.host} do not end; set the agent's `api_base` to the final address."
        error = UpstreamRejected("model_setup", message, error.details)
    elif idle := next((each for each in chain if isinstance(each, IdleTooLong)), None):
        error = UpstreamUnavailable("model_timeout", f"The model did not respond in time: {idle}.", error.details)
        told = {"limit": "idle", **told}
    elif _blames_path(told):
        error, told = _wrong_path(error, met), {**told, "path": met.path}
    elif error.code in _UNREAD and succeeded and not began and (sent := _sent_instead(met)):
        error = _no_answer(error, met, sent)
    elif error.code == "model_unavailable" and met.status is None and met.host:
        error.message = _unreached(chain, names, met.host)
    elif error.code == "model_unavailable" and succeeded:
        error = _broken_stream(error, names)
    error.details["refusal"] = told | _server(met)
    return error


def _refusal(details: Mapping[str, object]) -> dict[str, JsonValue]:
    refusal = details.get("refusal")
    return dict(refusal) if isinstance(refusal, dict) else {}


def _server(met: Exchange) -> dict[str, JsonValue]:
    parts: dict[str, JsonValue] = {"host": met.host, "status": met.status, "content_type": met.media}
    return {name: value for name, value in parts.items() if value}


def _blames_path(told: Mapping[str, JsonValue]) -> bool:
    """Returns whether the status blames the path, and the provider does not name a model."""
    said = f"{told.get('sentence', '')} {told.get('vendor_code', '')}"
    return told.get("status") == 405 or (told.get("status") == 404 and not _OF_A_MODEL.search(said))


def _wrong_path(error: PerdureError, met: Exchange) -> PerdureError:
    if met.status == 405:
        message = f"The model provider takes no requests at {met.host}{met.path}; check the agent's `api_base`."
        return UpstreamRejected("model_setup", message, error.details)
    place = f"{met.host}{met.path}"
    error.message = f"The model provider has nothing at {place}; check the agent's model name or its `api_base`."
    return error


def _broken_stream(error: PerdureError, names: set[str]) -> PerdureError:
    if names & {"json.decoder.JSONDecodeError", "builtins.UnicodeDecodeError"}:
        message = "The model provider's response is invalid: a line of its stream is not JSON."
        return UpstreamUnavailable("model_unreadable", message, error.details)
    error.message = "The model provider failed or closed the connection while it answered."
    return error


def _no_answer(error: PerdureError, met: Exchange, sent: str) -> PerdureError:
    """Returns the error of a success that contains nothing that a model sends."""
    if sent == "no choices":
        return UpstreamUnavailable(
            "model_unreadable", "The model provider's response is invalid: it has no choices.", error.details
        )
    message = f"The server at {met.host} answered {met.path} with {sent}. This is not a model server; check the agent's"
    return UpstreamRejected("model_setup", f"{message} `api_base` and the provider in its model's name.", error.details)


def _sent_instead(met: Exchange) -> str:
    """Returns what a server sent in place of an answer; empty if that is not clear. An empty stream can be a provider
    that failed."""
    head = met.head.strip()
    if met.media == "text/html" or head[:9].lower().startswith((b"<!doctype", b"<html")):
        return "a web page"
    if head.startswith(b"<"):
        return "text that is not JSON"
    if met.media == "text/event-stream":
        return ""
    if not head:
        return "an empty body"
    try:
        body = json.loads(head)
    except (ValueError, RecursionError):
        return "plain text" if met.media == "text/plain" and not head.startswith((b"data:", b"event:", b":")) else ""
    if isinstance(body, dict) and body.get("choices") == []:
        return "no choices"
    return "" if isinstance(body, dict) and _ANSWER_KEYS & body.keys() else "unrelated JSON"


def _unreached(chain: list[BaseException], names: set[str], host: str) -> str:
    """Returns the sentence about a server that did not answer at all."""
    if any(isinstance(each, socket.gaierror) for each in chain):
        return f"The name of the model provider's server {host} does not resolve; check the agent's `api_base`."
    if "httpx.ConnectError" in names:
        return f"The model provider's server {host} accepts no connection."
    return f"The model provider's server {host} closed the connection without an answer."
