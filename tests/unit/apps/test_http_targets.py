"""perdure/sdk/outcomes.py: its table, row by row, and the same failures made by a real socket."""

import asyncio
import re
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

from perdure import egress
from perdure.contracts.calls import EffectClass
from perdure.core.egress import Outbound
from perdure.egress import AnswerWithheld, DeadlineMissed, EgressRefused
from perdure.sdk import outcomes
from tests.doubles.hostile_target import HUGE_BYTES, MEBI, Talk, bomb, floods, says, silence, target, threaded
from tests.local_egress import new_client
from tests.unit.apps.tool_contexts import card, context

STATUSES = {
    "2xx": [200, 201, 202, 204], "3xx": [301, 302, 303, 307, 308], "408": [408], "409": [409], "429": [429],
    "any other 4xx, 501": [400, 401, 403, 404, 410, 422, 425, 501],
    "any other 5xx, 503 without Retry-After": [500, 502, 503, 504, 507, 520],
}  # fmt: skip
FAILURES: dict[str, list[Exception]] = {
    "no connection": [httpx.ConnectError(""), httpx.ConnectTimeout(""), httpx.PoolTimeout(""), httpx.ProxyError(""),
        DeadlineMissed("", sent=False)],
    "a host that the rules of outgoing requests forbid": [EgressRefused("")],
    "an address that no client can use": [httpx.InvalidURL(""), httpx.UnsupportedProtocol("")],
    "no answer before the deadline": [httpx.ReadTimeout(""), httpx.WriteTimeout(""), DeadlineMissed("", sent=True)],
    "reset or garbage after the request may have gone": [httpx.ReadError(""), httpx.WriteError(""),
        httpx.CloseError(""), httpx.RemoteProtocolError(""), httpx.LocalProtocolError(""), httpx.DecodingError("")],
}  # fmt: skip
WITHHELD = {
    "2xx to a GET or HEAD, with a body that is not read": ["GET", "HEAD", "get"],
    "2xx to anything else, with a body that is not read": ["POST", "PUT", "PATCH", "DELETE"],
}


def table() -> dict[str, list[outcomes.Meaning]]:
    """The table of the module's docstring: row label to the meaning in each of its three columns."""
    rows = {}
    for line in (outcomes.__doc__ or "").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(cells) == 4 and cells[1].removeprefix("the ") in set(outcomes.Meaning):
            label = re.sub(r"(: .*| \(.*\))$", "", cells[0])
            rows[label] = [outcomes.Meaning(cell.removeprefix("the ")) for cell in cells[1:]]
    return rows


def test_every_row_of_the_documented_table_has_a_test() -> None:
    tested = {*STATUSES, *FAILURES, *WITHHELD, "503 with Retry-After"}
    tested |= {"the call's deadline passed before anything was sent"}
    assert set(table()) == tested


@pytest.mark.parametrize("label", [*STATUSES, *FAILURES, *WITHHELD, "503 with Retry-After"])
def test_each_status_and_unreadable_body_has_its_outcome(label: str) -> None:
    for column, effects in enumerate((("read", "local"), ("keyed",), ("opaque",))):
        for effect in map(EffectClass, effects):
            found = [outcomes.meaning_of_status(effect, status, names_wait=False) for status in STATUSES.get(label, [])]
            found += [outcomes.meaning_of_failure(effect, error) for error in FAILURES.get(label, [])]
            found += [outcomes.meaning_of_withheld(effect, method) for method in WITHHELD.get(label, [])]
            found += (
                [outcomes.meaning_of_status(effect, 503, names_wait=True)] if label == "503 with Retry-After" else []
            )
            assert found and {*found} == {table()[label][column]}, (effect, found)


def test_every_transport_error_of_httpx_is_in_a_row() -> None:
    def leaves(kind: type[Exception]) -> set[type[Exception]]:
        below = kind.__subclasses__()
        return set().union(*map(leaves, below)) if below else {kind}

    tested = {type(error) for errors in FAILURES.values() for error in errors}
    assert leaves(httpx.TransportError) - {httpx.UnsupportedProtocol} <= tested


@pytest.mark.parametrize("effect", EffectClass)
async def test_a_deadline_that_has_passed_sends_nothing(effect: EffectClass) -> None:
    with pytest.raises(outcomes.ToolUnavailable):
        await context(card(effect), seconds=-0.1).send("POST", "http://target.test/")


@pytest.mark.parametrize("status", [*(each for label in STATUSES.values() for each in label), None])
@pytest.mark.parametrize("effect", [EffectClass.KEYED, EffectClass.OPAQUE])
async def test_a_later_refusal_is_no_proof_that_an_earlier_request_did_nothing(
    effect: EffectClass, status: int | None
) -> None:
    async def answers(request: httpx.Request) -> httpx.Response:
        if status is None or request.url.path == "/second":
            raise httpx.ReadError("") if request.url.path == "/first" else httpx.ConnectError("")
        return httpx.Response(status)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answers)) as http:
        made = context(card(effect), http=http)
        with suppress(Exception):
            await made.send("POST", "http://target.test/first")
        with pytest.raises(outcomes.ToolUnavailable) as unsent:
            await made.send("POST", "http://target.test/second")
    meaning = outcomes.meaning_of_status(effect, status, names_wait=False) if status else outcomes.Meaning.AMBIGUOUS
    changed = meaning in (outcomes.Meaning.ANSWER, outcomes.Meaning.AMBIGUOUS)
    group = ExceptionGroup("g", [outcomes.ToolRefused("x"), unsent.value])
    for error in (unsent.value, group):
        assert made.sent.may_have_changed_before(error) is changed
    assert not made.sent.may_have_changed_before(outcomes.ToolUnavailable("the author's own"))


def response(status: int, text: str = "", **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, text=text, headers=named, request=httpx.Request("POST", "http://target.test/x"))


def test_a_refusal_contains_the_targets_message_cut_to_a_maximum() -> None:
    for text in ('{"error": {"message": "no funds"}}', '{"detail": "no funds"}', '{"error": "no funds"}', "no\n funds"):
        with pytest.raises(outcomes.ToolRefused) as refused:
            outcomes.answer_or_raise(EffectClass.KEYED, response(422, text), ())
        assert all(part in refused.value.message for part in ("target.test", "422", "no funds"))
        assert "{" not in refused.value.message
    for body in ("x" * 10_000, '{"error": [1]}', "[]", "{"):
        with pytest.raises(outcomes.ToolRefused) as refused:
            outcomes.answer_or_raise(EffectClass.READ, response(400, body), ())
        assert len(refused.value.message) < 400
    with pytest.raises(httpx.HTTPStatusError):
        outcomes.answer_or_raise(EffectClass.KEYED, response(409), ())
    with pytest.raises(outcomes.ToolRefused):
        outcomes.answer_or_raise(EffectClass.KEYED, response(409), {409})  # a target that is taken at its word


@pytest.mark.parametrize(("asked", "seconds"), [("7", 7.0), ("99999", 3_600.0), ("soon", None), ("", None)])
def test_a_targets_retry_after_is_passed_on_up_to_an_hour(asked: str, seconds: float | None) -> None:
    with pytest.raises(outcomes.ToolUnavailable) as unavailable:
        outcomes.answer_or_raise(EffectClass.KEYED, response(429, retry_after=asked), ())
    assert unavailable.value.retry_after_seconds == seconds
    at = format_datetime(datetime.now(UTC) + timedelta(seconds=60))  # a date is counted from now
    with pytest.raises(outcomes.ToolUnavailable) as unavailable:
        outcomes.answer_or_raise(EffectClass.KEYED, response(503, retry_after=at), ())
    assert 55 < (unavailable.value.retry_after_seconds or 0) <= 60


def writes(data: bytes, resets: bool = False) -> Talk:
    """Answers with these bytes, then closes or resets."""

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        if resets:
            writer.transport.abort()

    return talk


HALF = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"
BROKEN = [writes(b""), writes(b"", resets=True), writes(b"what is HTTP?\r\n\r\n"), writes(HALF)]


@pytest.mark.parametrize("talk", BROKEN, ids=["closed", "reset", "garbage", "half"])
@pytest.mark.parametrize("effect", ["read", "keyed", "opaque"])
async def test_a_request_that_may_have_gone_is_ambiguous_for_all_but_a_read(talk: Talk, effect: str) -> None:
    expected = outcomes.ToolUnavailable if effect == "read" else httpx.TransportError
    async with target(talk) as made, new_client() as http:
        with pytest.raises(expected):
            await context(card(effect), http=http, seconds=0.5).send("POST", made.url, json={})
    assert len(made.heads) == 1


@pytest.mark.parametrize("talk", [silence, floods(200, b"x", gap=0.05)], ids=["silence", "trickle"])
@pytest.mark.parametrize("effect", EffectClass)
async def test_a_call_without_a_whole_answer_ends_at_its_deadline(talk: Talk, effect: EffectClass) -> None:
    began = time.monotonic()
    async with target(talk) as made, new_client() as http:
        with pytest.raises(TimeoutError):
            await context(card(effect), http=http, seconds=0.3).send("POST", made.url, json={})
    assert len(made.heads) == 1 and time.monotonic() - began < 3


async def test_a_closed_port_is_unavailable_and_an_unusable_or_unnamed_address_is_refused() -> None:
    async with target(says()) as made, egress.new_client(Outbound()) as unnamed:
        for effect in EffectClass:
            with pytest.raises(outcomes.ToolRefused, match=r"127\.0\.0\.1"):
                await context(card(effect), http=unnamed).send("POST", made.url)
    assert made.heads == []
    async with new_client() as http:
        for effect in EffectClass:
            with pytest.raises(outcomes.ToolUnavailable, match=r"127\.0\.0\.1"):
                await context(card(effect), http=http).send("POST", made.url)
        for url in ("ftp://target.test/", "target.test/x", "http://[::1/"):
            with pytest.raises(outcomes.ToolRefused):
                await context(card("opaque"), http=http).send("POST", url)


async def test_only_a_keyed_tool_sends_its_key_and_no_other_tool_can_set_one() -> None:
    async with target(says()) as made, new_client() as http:
        for effect in EffectClass:
            await context(card(effect), http=http).send("POST", made.url, headers={"idempotency-key": "mine"})
    keys = [re.findall(r"(?im)^idempotency-key: (\S+)", head) for head in made.heads]
    assert keys == [["pdk_1"] if effect is EffectClass.KEYED else ["mine"] for effect in EffectClass]


async def test_no_connection_is_used_twice_and_no_redirect_is_followed() -> None:
    ports = set()

    async def note_port(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ports.add(writer.get_extra_info("peername")[1])
        await says()(reader, writer)
        await reader.read()

    async with target(note_port) as made, new_client() as http:
        for _ in range(3):
            assert (await context(card(), http=http).send("GET", made.url)).json() == {}
    assert len(ports) == 3
    async with target(says(307, b"", "location: http://127.0.0.1:1/")) as made, new_client() as http:
        with pytest.raises(httpx.HTTPStatusError) as raised:
            await context(card("keyed"), http=http).send("POST", made.url)
    assert raised.value.response.status_code == 307
    assert len(made.heads) == 1


TOO_LARGE = {
    "announced": floods(announced=True),
    "without an end": floods(),
    "a bomb": says(200, bomb(), "content-encoding: gzip"),
    "brotli": says(200, b"x", "content-encoding: br"),
}


@pytest.mark.parametrize("kind", TOO_LARGE)
@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("effect", EffectClass)
async def test_a_too_large_success_is_withheld_or_refused(kind: str, method: str, effect: EffectClass) -> None:
    code = "answer_encoding" if kind == "brotli" else "answer_too_large"
    with threaded(TOO_LARGE[kind]) as made:
        async with new_client() as http:
            asked = context(card(effect), http=http, seconds=30).send(method, made.url)
            if effect in (EffectClass.READ, EffectClass.LOCAL):
                with pytest.raises(outcomes.ToolRefused, match=f"^{code}: ") as refused:
                    await asked
                assert kind != "announced" or re.search(f"{10 * MEBI}.*{HUGE_BYTES}", refused.value.message)
            else:
                with pytest.raises(AnswerWithheld) as withheld:
                    await asked
                assert (withheld.value.code, withheld.value.method) == (code, method)
    assert len(made.heads) == 1


@pytest.mark.parametrize(("most", "fits"), [(None, True), (MEBI, True), (MEBI - 1, False)])
async def test_a_tool_can_set_its_own_size_limit(most: int | None, fits: bool) -> None:
    with threaded(says(200, b"x" * MEBI)) as made:
        async with new_client() as http:
            asked = context(card(max_answer_bytes=most), http=http).send("GET", made.url)
            if fits:
                assert len((await asked).content) == MEBI
            else:
                with pytest.raises(outcomes.ToolRefused, match="answer_too_large"):
                    await asked


@pytest.mark.parametrize("secret", [f"zebra{'x' * 60}", "zebra\nzebra\nzebra"])
@pytest.mark.parametrize("before", [0, 270])
async def test_a_secret_that_the_target_echoes_is_hidden_before_its_words_are_cut(secret: str, before: int) -> None:
    echo = httpx.MockTransport(lambda request: httpx.Response(400, text=f"{'a' * before} {secret} b"))
    async with httpx.AsyncClient(transport=echo) as client:
        with pytest.raises(outcomes.ToolRefused) as refused:
            await context(http=client, secrets={"key": secret}).send("POST", "http://desk.test/")
    assert "zebra" not in refused.value.message and "…" in refused.value.message
