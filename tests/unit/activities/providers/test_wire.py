"""What a provider's server sends, adapted to its client; the signed thinking of a stream, joined or dropped as a whole;
a provider's sentence, shown without what may be content or a secret."""

import base64
import json
import re
from collections.abc import Callable
from types import SimpleNamespace as Chunk
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perdure.activities.providers.masking import (
    MAX_SENTENCE_CHARACTERS,
    RequestTexts,
    mask,
    mask_secrets,
)
from perdure.activities.providers.thinking import MAX_SIGNED_CHARACTERS, SignedThinking, ThinkingReader
from perdure.activities.providers.wire import LineEnds, StreamAdapter, WholeAnswer, as_stream
from perdure.core.calls.secrets import MASK, MIN_SECRET_CHARACTERS, without_secrets

TEXT = "a\u2028b\u2029\u0085é\u2027\u20ac\u0086 \U0001f600"
RAW = json.dumps({"a": TEXT}, ensure_ascii=False).encode()


def test_line_ends_are_escaped_wherever_the_stream_is_cut() -> None:
    for pieces in ([RAW[:cut], RAW[cut:]] for cut in range(len(RAW))):
        ends = LineEnds()
        read = b"".join(map(ends.add, pieces)) + ends.end()
        assert json.loads(read) == {"a": TEXT} and len(read.decode().splitlines()) == 1
    one_by_one = LineEnds()
    assert b"".join(one_by_one.add(bytes([each])) for each in RAW) + one_by_one.end() == read
    assert (ends.add(b"x\xe2\x80"), ends.end(), ends.end()) == (b"x", b"\xe2\x80", b"")


def test_a_stream_that_is_labelled_as_json_stays_one_and_a_whole_answer_becomes_one() -> None:
    event = b'data: {"a": "\xe2\x80\xa8"}\n\n'
    labelled = WholeAnswer()
    read = [labelled.add(piece) for piece in (b"", b"\n", event[:-5], event[-5:])]
    assert (b"".join(read) + labelled.end()).strip() == event.replace(b"\xe2\x80\xa8", b"\\u2028").strip() and all(
        read[2:]
    )
    whole = WholeAnswer()
    assert [whole.add(piece) for piece in (b" ", b'{"error": ', b"{}}")] == [b""] * 3
    assert whole.end() == b'data: {"error": {}}\n\n'
    pretty = WholeAnswer()
    assert [pretty.add(piece) for piece in (b"{\n", b'"error": ', b"{}}\n", b"\n")] == [b""] * 4
    assert pretty.end() == b'data: {"error": {}}\n\n'
    lines = WholeAnswer()
    assert [lines.add(piece) for piece in (b'{"a"', b": 1}\n", b'{"b": 2}\n', b"{")] == [
        *(b"", b""),
        *(b'{"a": 1}\n{"b": 2}\n', b"{"),
    ]


STREAMS = b'{"stream": true}'


@pytest.mark.parametrize(("content_type", "request_body", "kind"), [
    ("application/x-ndjson", STREAMS, LineEnds),
    *((kind, STREAMS, WholeAnswer) for kind in ("application/json", "text/plain", "text/event-stream", "")),
    ("application/json", b"{}", LineEnds),
    ("application/vnd.amazon.eventstream", STREAMS, type(None)),
    ("text/event-stream; charset=latin-1", STREAMS, type(None)),
])  # fmt: skip
def test_only_text_is_rewritten(content_type: str, request_body: bytes, kind: type) -> None:
    assert type(StreamAdapter().rewriter(request_body, content_type)) is kind


ASKED = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}


OPTIONS, STREAM = {"model", "stream"}, {"model"}
"""What is left without `stream_options`, and without both."""
VALIDATION = "1 validation error for Request\nstream_options\n  Extra inputs are not permitted"
FOREIGN_LOC = "[{'loc': ('body', 'top_k'), 'msg': 'Extra inputs', 'input': {'stream': True, 'stream_options': {}}}]"


def sentence(text: str, param: Any = None) -> Any:
    return {"error": {"message": text, "param": param}}


@pytest.mark.parametrize(("refusal", "left"), [
    (sentence("Unrecognized request argument supplied: stream_options"), OPTIONS),
    ({"detail": [{"loc": ["body", "stream_options"], "msg": "Extra inputs are not permitted", "input": {}}]}, OPTIONS),
    ({"detail": [{"loc": ["body", "stream_options", "include_usage"], "msg": "Extra inputs"}]}, OPTIONS),
    *((sentence(text), OPTIONS) for text in (VALIDATION, "stream_options: Extra inputs are not permitted")),
    (sentence("Unknown parameter: 'stream_options'."), OPTIONS),
    (sentence("[{'loc': ('body', 'stream_options'), 'msg': 'Extra inputs', 'input': {}}]"), OPTIONS),
    (sentence("You must be verified to stream this model.", "stream"), STREAM),
    *((text, STREAM) for text in ("Streaming is not supported", "This model does not support streaming.")),
    *((sentence(text), STREAM) for text in ("Error: stream must be false", "Invalid value for `stream`.")),
    ({"detail": [{"loc": ["body", "top_k"], "input": "stream"}]}, None),
    ({"detail": [{"loc": ["body", "messages", 0, "stream"], "msg": "Field required"}]}, None),
    *((sentence(text), None) for text in ("max_tokens is too large", FOREIGN_LOC, "Invalid text: a stream of tears")),
    *((sentence(text), None) for text in ("The words up the stream are not allowed.", "Streams of blood are bad")),
    (sentence("Invalid value: 'stream'.", "messages"), None),
])  # fmt: skip
def test_a_refusal_that_names_the_stream_is_asked_again_without_it(refusal: Any, left: set[str] | None) -> None:
    again = StreamAdapter().request_again(json.dumps(ASKED).encode(), json.dumps(refusal).encode())
    assert (set(json.loads(again)) if again else None) == left
    assert StreamAdapter().request_again(b'{"model": "m"}', json.dumps(refusal).encode()) is None


def test_two_parameters_can_be_refused_one_after_the_other() -> None:
    body: bytes | None = json.dumps(ASKED).encode()
    for name in ("stream_options", "stream"):
        assert body is not None
        body = StreamAdapter().request_again(body, json.dumps(sentence("Unsupported", name)).encode())
    assert body == b'{"model": "m"}'


def test_a_message_of_anthropic_becomes_its_stream_and_another_body_stays() -> None:
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "text", "text": "Yes."},
        {"type": "tool_use", "id": "i", "name": "look", "input": {"k": 1}},
    ]
    usage = {"input_tokens": 1, "output_tokens": 2}
    message = {"type": "message", "content": blocks, "stop_reason": "tool_use", "usage": usage}
    lines = as_stream(json.dumps(message).encode()).decode().splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert [each["type"] for each in deltas] == ["thinking_delta", "signature_delta", "text_delta", "input_json_delta"]
    assert (events[-2]["delta"]["stop_reason"], events[-2]["usage"]) == ("tool_use", usage)
    error = as_stream(b'{"error": {"message": "down"}}')
    assert error == b'data: {"error": {"message": "down"}}\n\n'
    for other in (b"", b"[]", b"{", b'{"choices": []}', b"<html>"):
        assert as_stream(other) == other


CLAUDE = "anthropic/claude-sonnet-4-5"
WHERE, THERE, SIGNED = {"thinking": "Where? "}, {"thinking": "There."}, {"signature": "s1"}
HIDDEN = {"type": "redacted_thinking", "data": "d1"}
BLOCK = {"type": "thinking", "thinking": "Where? There.", "signature": "s1"}
EMPTY = {"type": "thinking", "thinking": "", "signature": "s1"}


@pytest.mark.parametrize(("pieces", "blocks"), [
    ([WHERE, THERE, SIGNED], [BLOCK]),
    ([WHERE, THERE, SIGNED, WHERE, THERE, SIGNED], [BLOCK, BLOCK]),
    ([HIDDEN, WHERE, THERE, SIGNED, HIDDEN], [HIDDEN, BLOCK, HIDDEN]),
    ([SIGNED], [EMPTY]),
    ([], None),
    ([WHERE], None),
    ([WHERE, HIDDEN], None),
    ([{"thinking": "a \ud83d"}, SIGNED], None),
    ([{"thinking": "\ud83d"}, {"thinking": "\ude00"}, SIGNED], [{**EMPTY, "thinking": "\U0001f600"}]),
        ([{"thinking": 1}, SIGNED], None),
    (["x", SIGNED], None),
    ([{"thinking": "x" * MAX_SIGNED_CHARACTERS}, SIGNED], None),
])  # fmt: skip
def test_thinking_is_kept_whole_with_its_signature_or_not_at_all(pieces: list[Any], blocks: Any) -> None:
    found = {}
    for model in (CLAUDE, "gemini/gemini-3-pro"):
        reader = ThinkingReader(model)
        for empty in (Chunk(), Chunk(choices=[]), Chunk(choices=[Chunk(delta=None)])):
            reader.add(empty)
        for piece in pieces:
            reader.add(Chunk(choices=[Chunk(delta=Chunk(thinking_blocks=[piece]))]))
        found[model] = reader.result()
    assert [*found.values()] == [SignedThinking(CLAUDE, tuple(blocks)) if blocks else None, None]


NAMES = ("look_up", "a", "claude-3-5-sonnet-20241022", "org/model4everyone20250101")
KEPT = [
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
    "This model's maximum context length is 8192 tokens, and your message's is 9000.",
    "Invalid schema for function 'look_up': In context=('properties', 'a'), 'oneOf' is not permitted.",
    "tools.0.custom.input_schema: JSON schema is invalid. It must match JSON Schema draft 2020-12",
    "The model `claude-3-5-sonnet-20241022` does not exist; see https://docs.example.com/models.",
    "The model `org/model4everyone20250101` does not exist.",
    'Expected a value <= 2, but got "200" instead.',
]
MASKED = [
    ("Invalid value: 'Mueller-Luedenscheidt'.", "Invalid value: '…'."),
    ("Unknown name 'Diagnosis:HIV' or 'diabetes'", "Unknown name '…'"),
    ("the tool 'pay_out' is unknown", "the tool '…' is unknown"),
    ("Invalid value: 'I have a rash'.", "Invalid value: '…'."),
    ("Invalid value: 'he said 'no' to me'. Use 'low'.", "Invalid value: '…'."),
    ("Invalid value: 'cut in the midd", "Invalid value: '…"),
    ("Bad “text of a person”, «and more», `rm -rf /`", "Bad “…”, «…», `…`"),
    ("'messages' must contain the word 'json don't you see'", "'messages' must contain the word '…'"),
    ("Field required: {'role': 'user', 'content': 'hello'}", "Field required: {…}"),
    ('Bad body {"content": "hel', "Bad body {…}"),
    ("Input should be text, input: Dear doctor", "Input should be text, input: …"),
    ("Incorrect API key provided: sk-proj-abc123.", "Incorrect API key provided: …"),
    ("Incorrect API key provided: plainword.", "Incorrect API key provided: …"),
    ("Incorrect key ab***yz", "Incorrect key …"),
    ("Bearer abcdef is no token", "Bearer … is no token"),
    ("the account ann@example.com is closed", "the account … is closed"),
    ("cannot load https://u:p@h.example/x.png or https://h.example/x?sig=1", "cannot load … or …"),
    ("in organization org-AbCd1234EfGh5678IjKl on tokens", "in organization … on tokens"),
    ("request 0192b000-0000-7000-8000-0000000000ab failed", "request … failed"),
    ("token eyJhbGciOi.eyJzdWIi.c2ln failed", "token … failed"),
    ("image data aGVsbG8gd29ybGQ5aGVsbG8= is broken", "image data … is broken"),
    ("a\n\tb\x00\x1b[31mc", "a b[31mc"),
]


@pytest.mark.parametrize(("said", "shown"), [*((each, each) for each in KEPT), *MASKED])
def test_a_sentence_keeps_its_reason_and_loses_its_content(said: str, shown: str) -> None:
    assert mask(said, RequestTexts(names=NAMES)) == shown


def test_known_secrets_and_long_sentences_are_cut() -> None:
    assert mask("the key is hunter2, as in hunter22", RequestTexts(("hunter2", ""))) == "the key is …, as in …2"
    said = "'hunter2' \\n of sk-abcdefgh, http://a.test/x?y=1 and token: abc, but not 'missing'"
    assert mask_secrets(said, ["hunter2\n", "\n", "but"]) == "'…' \\n of … … and token: … but not 'missing'"
    assert "zebra" not in mask_secrets(f"http://{'x' * 4_980}@h zebrafish", ["zebrafish"]), "also where a text is cut"
    assert len(mask("word " * 200)) == MAX_SENTENCE_CHARACTERS
    parts = ("x", "x@", "a://", "'", "password='", 'token: \\\\"', "basic a", "cookie: a", "cookies={", "\\", "%3D")
    for part in parts:
        assert len(mask(part * 500_000, RequestTexts(("a\\\\b c",)))) <= MAX_SENTENCE_CHARACTERS, "in bounded time"
        assert len(mask_secrets(part * 500_000, ("a\\\\b c",))) <= MAX_SENTENCE_CHARACTERS * 20
    for opened in ('"He said "hello" to Anna', '{"a": {"b": 1}, note: Anna'):
        assert "Anna" not in mask(f"Invalid input {opened} {'and so on ' * 600}"), "the last quote was cut off"


@pytest.mark.parametrize(("said", "shown"), [
    ("{'Authorization': 'Bearer zebra x', 'Accept': 'a'}", "{'Authorization': '…', 'Accept': 'a'}"),
    ('{"authorization": "zebra", "a": 1}', '{"authorization": "…", "a": 1}'),
    (r'"{\"Authorization\": \"Basic zebra\", \"a\": \"b\"}"', r'"{\"Authorization\": \"…\", \"a\": \"b\"}"'),
    ("[('authorization', 'Bearer zebra'), (b'cookie', b'zebra')]", "[('authorization', '…'), (b'cookie', '…')]"),
    ("Authorization: Basic dXNlcjpwYXNz failed", "Authorization: … failed"),
    ('Authorization: Digest username="a", response="zebra"\nnext', "Authorization: …\nnext"),
    *((f"got {scheme} dXNlcjpwYXNz, no", f"got {scheme} …, no") for scheme in ("basic", "BASIC", "Token", "token")),
    ("bEaReR zebra failed", "bEaReR … failed"),
    ("Cookie: sid=zebra; session=zebra\nnext", "Cookie: …\nnext"),
    ("{'Set-Cookie': 'sid=zebra; Path=/', 'a': 1}", "{'Set-Cookie': '…', 'a': 1}"),
    ("cookies={'sid': 'zebra'} for a", "cookies=… for a"),
    ("<Cookie session=zebra for host/>", "<Cookie …"),
    *((f"a?{name}=zebra", f"a?{name}=…") for name in ("api_key", "apikey", "client_secret", "passwd", "pwd", "APIKEY")),
    ("x-api-key: zebra at", "x-api-key: … at"),
    *((f"{name}: zebra at", f"{name}: … at") for name in ("password", "refresh_token", "private_key", "accessToken")),
    ('{"db_password": "zebra x", "max_tokens": 5}', '{"db_password": "…", "max_tokens": 5}'),
    ("f(password='it\\'s, a \"zebra\"', user='u')", "f(password='…', user='u')"),
    ("password='it's, a zebra' user", "password='…' user"),
    ('secret = "zebra, and \'more', 'secret = "…'),
    ("password%3Dzebra", "password%3D…"),
    ("passwords=['it, zebra]', \"zebra\"] x", "passwords=… x"),
    ("f(password=SecretStr('zebra x'), a=u'b')", "f(password=… a=u'b')"),
    ("password=a(b)zebra at", "password=… at"),
    ("<password>zebra</password>", "<password>…"),
    ("psql --db-password zebra -v", "psql --db-password … -v"),
    ("{'token': ['zebra crossing'], 'a': 1}", "{'token': … 'a': 1}"),
    ("Pwd={zebra; x}; at s", "Pwd=… at s"),
    ("postgres://user:zebra@host/db is down", "… is down"),
    ("-----BEGIN RSA PRIVATE " + "KEY-----\nzebra\n", "…"),
    *((each, each) for each in (
        *("the password is wrong", "token limit exceeded", "secret santa", "total_tokens=5, max_tokens: 7"),
        *("Basic authentication failed", "Token refresh needed", "the bearer token is missing", "KeyError: 'key'"),
        *("cookie: missing", "the cookie 'a' was refused", "idempotency_key=a", "secretary: Ann", "token_type: a"),
    )),
])  # fmt: skip
def test_what_looks_like_a_secret_is_masked_and_words_stay(said: str, shown: str) -> None:
    assert mask_secrets(said, ()) == shown


def wrapped(text: str, end: str) -> str:
    return end.join(re.findall(".{1,6}", text))


def in_base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


URL_SAFE = str.maketrans("+/", "-_")
ENCODINGS: list[Callable[[str], str]] = [
    *(str, quote, quote_plus, in_base64),
    lambda text: re.sub("%..", lambda octet: octet[0].lower(), quote(text, safe="")),
    *(lambda text: json.dumps(text)[1:-1], lambda text: json.dumps(text, ensure_ascii=False)[1:-1]),
    *(lambda text: json.dumps(json.dumps(text))[3:-3], lambda text: repr(text)[1:-1], lambda text: ascii(text)[1:-1]),
    *(lambda text: repr(text.encode())[2:-1], lambda text: quote(in_base64(f"us:{text}"), safe="")),
    *(lambda text: text.encode().hex(), lambda text: text.encode().hex().upper()),
    *(lambda text: wrapped(in_base64(text), "\r\n  "), lambda text: wrapped(quote(in_base64(text)), r"\\r\\n")),
    *(lambda text: wrapped(text.encode().hex(), " "), lambda text: wrapped(in_base64(f"us:{text}"), "%0D%0A")),
    *(lambda text: in_base64(f"u:{text}"), lambda text: in_base64(f"{text}:u").translate(URL_SAFE).rstrip("=")),
]

SECRET_LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters=f"{MASK}\0") | st.sampled_from(
    "\\\"'%+/ \n"
)


@given(
    st.text(SECRET_LETTERS, min_size=MIN_SECRET_CHARACTERS), st.sampled_from(ENCODINGS), st.text(), st.text(),
    st.integers(0, 99),
)  # fmt: skip
def test_a_declared_secret_survives_in_no_encoding(
    secret: str, encode: Callable[[str], str], before: str, after: str, limit: int
) -> None:
    assume(len(secret.strip()) >= MIN_SECRET_CHARACTERS)
    text = f"{before} {encode(secret)} {after}"
    shown = without_secrets(text, [secret])
    assert encode(secret) not in shown and secret not in shown
    cut = without_secrets(text, [secret], limit)
    assert len(cut) <= limit and shown.startswith(cut), "no part of one stays where a text is cut"


@given(st.text(alphabet="abc '\"`{}\n", min_size=1), st.sampled_from("'\"`"))
def test_a_quoted_text_of_several_words_is_never_shown(text: str, quote: str) -> None:
    shown = mask(f"Invalid value {quote}my zebra {text} quagga{quote}")
    assert "zebra" not in shown and "quagga" not in shown


CONTENT = ("You are the desk. Answer in the language of the message.", "My brother Jan Novak has a rash since Tuesday.")


@pytest.mark.parametrize(("said", "shown"), [
    ("Cannot parse My brother Jan Novak has a rash since Tuesday. at line 1", "Cannot parse …. at line 1"),
    ("The text jan NOVAK, has a rash is not allowed", "The text … is not allowed"),
    ("The message must be one of the user's.", "The message must be one of the user's."),
    ("The rash has no room", "The rash has no room"),
    ("This model's maximum context length is 8192 tokens.", "This model's maximum context length is 8192 tokens."),
])  # fmt: skip
def test_words_of_the_request_are_masked_without_quotes(said: str, shown: str) -> None:
    assert mask(said, RequestTexts(content=CONTENT)) == shown


@given(st.lists(st.sampled_from(["zebra", "quagga", "the", "of", "Ünal", "42nd"]), min_size=3, max_size=9))
def test_a_repeated_text_is_never_shown_whole(words: list[str]) -> None:
    shown = mask(f"Bad input. {' '.join(words)}! Try again.", RequestTexts(content=[", ".join(words)]))
    runs = [words[place : place + 3] for place in range(len(words) - 2)]
    assert not any(" ".join(run) in shown for run in runs if not {"the", "of"}.issuperset(run))
    assert MASK in shown or {"the", "of"}.issuperset(words)
