"""Adapts the servers of models to what their clients expect: streams of JSON, line by line.

- U+0085, U+2028 and U+2029 are allowed inside JSON strings, but to several clients they end a line, which cuts an event
  in two. They are escaped. In JSON, both forms are the same text.
- Some servers ignore `stream` and answer with one JSON body, under any content type. It becomes the stream of the same
  answer.
- Some servers refuse `stream` or `stream_options`. Another request is then sent without it.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from perdure.egress import Rewriter

_LINE_ENDS = {each.encode(): f"\\u{ord(each):04x}".encode() for each in "\u0085\u2028\u2029"}
_CUT_CHARACTERS = (b"\xe2\x80", b"\xe2", b"\xc2")
"""The ends of a piece in which one of them may be cut in two."""
_ECHOED = frozenset({"input", "ctx", "request", "body"})
"""Fields of an error in which servers repeat the request, which always contains the word `stream`."""
_NAMING = frozenset({"param", "loc", "field", "parameter"})
"""Fields of an error that name the refused parameter."""
_QUOTED_LOC = re.compile(r"""["']loc["']:\s*[(\[]([^)\]]*)[)\]]""")
"""The refused parameter in a sentence that is the text of a list of errors (vLLM)."""
_OPTIONS, _STREAM = "stream_options", "stream"
_SENTENCES = {
    name: re.compile(
        rf"""(?:^|\.\s)\W*(?:\w*error:\s+)?["'`]?{word}["'`]?(?=\s*(?:$|[:.])|\s+(?:is|must|cannot|can't|not)\b)"""
        rf"""|:\s+{word}\W*$"""
        rf"""|(?P<quote>["'`]){word}(?P=quote)(?!\s*:\s*(?:true|\{{))"""
        rf"""|support\w*\s+(?:the\s+)?(?:param\w*\s+)?["'`]?{word}\b""",
        re.MULTILINE | re.IGNORECASE,
    )
    for name, word in ((_OPTIONS, _OPTIONS), (_STREAM, "stream(?:ing)?"))
}
"""Patterns of sentences that name a parameter: at their beginning or end, in quotes, or as not supported. Anywhere
else, the word can be the user's."""


class StreamAdapter:
    """The adapter of the requests to models (perdure/egress/exchange.py)."""

    def request_again(self, request: bytes, refusal: bytes) -> bytes | None:
        """Returns the body to send after a refusal that names `stream` or `stream_options`; None for any other."""
        body = _object(request)
        if _OPTIONS in body and _refuses(refusal, _OPTIONS):
            dropped = {_OPTIONS}
        elif body.get(_STREAM) is True and _refuses(refusal, _STREAM):
            dropped = {_STREAM, _OPTIONS}
        else:
            return None
        return json.dumps({name: value for name, value in body.items() if name not in dropped}).encode()

    def rewriter(self, request: bytes, content_type: str) -> Rewriter | None:
        """Returns what rewrites the body of a success; None for binary formats."""
        kind, _, parameters = content_type.lower().partition(";")
        charset = parameters.partition("charset=")[2].strip("\"' ")
        if charset not in ("", "utf-8", "utf8") or not ("json" in kind or kind.startswith("text/") or not kind):
            return None
        may_be_whole = "ndjson" not in kind and _object(request).get(_STREAM) is True
        return WholeAnswer() if may_be_whole else LineEnds()


class LineEnds:
    """Escapes the line ends that JSON strings may contain, also if a piece ends within one."""

    def __init__(self) -> None:
        self._rest = b""

    def add(self, data: bytes) -> bytes:
        """Returns `data` with escaped line ends. A line end that may continue in the next piece is kept for it."""
        data, self._rest = self._rest + data, b""
        for cut in _CUT_CHARACTERS:
            if data.endswith(cut):
                data, self._rest = data[: -len(cut)], cut
                break
        for raw, escaped in _LINE_ENDS.items():
            data = data.replace(raw, escaped)
        return data

    def end(self) -> bytes:
        """Returns the bytes that waited for a next piece."""
        rest, self._rest = self._rest, b""
        return rest


class WholeAnswer:
    """Turns one JSON body into the stream of the same answer. A body that is a stream passes through: it does not begin
    with an object, or another line follows a whole object."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._stream: LineEnds | None = None
        self._has_first_line = False

    def add(self, data: bytes) -> bytes:
        """Keeps a piece of the body and returns nothing; returns a piece of a stream."""
        if self._stream is None and not any(self._pieces) and data.strip()[:1] not in (b"", b"{", b"["):
            self._stream = LineEnds()
        if self._stream is not None:
            return self._stream.add(data)
        self._pieces.append(data.lstrip() if not any(self._pieces) else data)
        return self._read_lines() if b"\n" in data or self._has_first_line else b""

    def _read_lines(self) -> bytes:
        """Returns the lines so far, if the first one is a whole object."""
        first, _, rest = b"".join(self._pieces).partition(b"\n")
        self._has_first_line = bool(_object(first))
        if not (self._has_first_line and rest.strip()):
            return b""
        self._stream, data = LineEnds(), b"".join(self._pieces)
        return self._stream.add(data)

    def end(self) -> bytes:
        """Returns the kept body as a stream, or the rest of a stream that passed through."""
        return as_stream(b"".join(self._pieces)) if self._stream is None else self._stream.end()


def as_stream(body: bytes) -> bytes:
    """Returns the answer in `body` as a stream in its vendor's format; any other body unchanged."""
    answer = _object(body)
    choices = answer.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        events = _openai_events(answer, choices[0])
    elif answer.get("type") == "message" and isinstance(answer.get("content"), list):
        events = _anthropic_events(answer)
    elif "error" in answer:
        events = iter([answer])
    else:
        return body
    return b"".join(map(_event, events))


def _event(data: Mapping[str, Any] | str) -> bytes:
    if isinstance(data, str):
        return f"data: {data}\n\n".encode()
    kind = f"event: {data['type']}\n" if isinstance(data.get("type"), str) else ""
    return f"{kind}data: {json.dumps(data)}\n\n".encode()


def _openai_events(answer: dict[str, Any], choice: dict[str, Any]) -> Iterator[Mapping[str, Any] | str]:
    head = {name: answer.get(name) for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    delta: dict[str, Any] = dict(choice.get("message") or choice.get("delta") or {})
    if isinstance(delta.get("tool_calls"), list):
        calls = [call for call in delta["tool_calls"] if isinstance(call, dict)]
        delta["tool_calls"] = [{**call, "index": index} for index, call in enumerate(calls)]
    yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice.get("finish_reason")}]}
    if answer.get("usage"):
        yield {**head, "choices": [], "usage": answer["usage"]}
    yield "[DONE]"


def _anthropic_events(answer: dict[str, Any]) -> Iterator[Mapping[str, Any] | str]:
    message = {**answer, "content": [], "stop_reason": None, "stop_sequence": None}
    yield {"type": "message_start", "message": message}
    for index, block in enumerate(each for each in answer["content"] if isinstance(each, dict)):
        empty, deltas = _anthropic_block(block)
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    end = {"stop_reason": answer.get("stop_reason"), "stop_sequence": answer.get("stop_sequence")}
    yield {"type": "message_delta", "delta": end, "usage": answer.get("usage") or {}}
    yield {"type": "message_stop"}


def _anthropic_block(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns a block as it begins in a stream, and its deltas."""
    kind = block.get("type")
    if kind == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": block.get("text")}]
    if kind == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": block.get("thinking")}]
        if block.get("signature"):
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        return {**block, "thinking": "", "signature": ""}, deltas
    if kind == "tool_use":
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": json.dumps(block.get("input"))}]
    return block, []


def _object(body: bytes) -> dict[str, Any]:
    """Returns the JSON object in `body`, or an empty one if there is none."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _refuses(refusal: bytes, name: str) -> bool:
    """Returns whether a server refuses the parameter `name`. A field that names the parameter decides, and a sentence
    otherwise."""
    try:
        said = list(_labelled_texts(json.loads(refusal)))
    except (ValueError, RecursionError):
        said = [("", refusal.decode("utf-8", "replace"))]
    named = [_parts(text) for field, text in said if field]
    sentences = [text for field, text in said if not field]
    named += [_parts(found) for text in sentences for found in _QUOTED_LOC.findall(text)]
    if named:
        return any(name in parts[:1] for parts in named)
    return any(_SENTENCES[name].search(text) for text in sentences)


def _parts(path: str) -> list[str]:
    """Returns the names on the way to a parameter, below the body."""
    return [part for part in re.findall(r"\w+", path.lower()) if part != "body"]


def _labelled_texts(value: object) -> Iterator[tuple[str, str]]:
    """Yields the texts of an error, each with the name of its field if that names a parameter."""
    if isinstance(value, str):
        yield "", value
    elif isinstance(value, list):
        for each in value:
            yield from _labelled_texts(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            if name in _NAMING and each:
                yield name, ".".join(map(str, each)) if isinstance(each, list) else str(each)
            elif name not in _ECHOED:
                yield from _labelled_texts(each)
