"""perdure/sdk/tools.py: what becomes a tool, what is refused at import, and how a call reaches the function."""

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import AfterValidator, BaseModel, Field, JsonValue

from perdure.contracts.calls import EffectClass
from perdure.contracts.values import digest_of
from perdure.core.agents.tool_versions import version_difference
from perdure.core.text import is_clean
from perdure.sdk import threads, tools
from perdure.sdk.context import UndeclaredSecret
from perdure.sdk.outcomes import ToolUnavailable, result_of
from perdure.sdk.tools import (
    Preview,
    Tool,
    ToolContext,
    ToolDefinitionError,
    ToolPreview,
    ToolRefused,
    ToolResult,
    tool,
)
from tests.eventually import until
from tests.unit.apps.tool_contexts import card, context


class Address(BaseModel):
    street: str
    number: int = 1


def _even(value: int) -> int:
    if value % 2:
        raise ValueError("must be even")
    return value


@tool(effect="read", timeout_seconds=5)
async def look_up(
    name: Annotated[str, Field(min_length=2, description="Whom to look up")],
    address: Address,
    kind: Literal["person", "firm"] = "person",
    since: date | None = None,
) -> JsonValue:
    """Look somebody up.

    Knows nobody.
    """
    return {"name": name, "street": address.street, "kind": kind, "since": since is not None}


def test_a_tools_card_is_derived_from_its_function() -> None:
    card = look_up.card
    assert (card.name, card.description) == ("look_up", "Look somebody up.\n\nKnows nobody.")
    assert card.effect is EffectClass.READ and not card.needs_approval and card.timeout_seconds == 5
    Draft202012Validator.check_schema(card.parameters)
    assert card.parameters["additionalProperties"] is False
    assert card.parameters["required"] == ["name", "address"]
    properties = card.parameters["properties"]
    assert isinstance(properties, dict)
    assert properties["name"] == {"type": "string", "minLength": 2, "description": "Whom to look up"}
    assert list(properties) == ["name", "address", "kind", "since"]


async def test_a_call_gets_the_types_that_the_hints_name_and_the_functions_own_defaults() -> None:
    args: dict[str, JsonValue] = {"name": "Ada", "address": {"street": "Main"}, "since": "2026-01-01"}
    result = await look_up.run(args, context(look_up.card))
    assert result == ToolResult({"name": "Ada", "street": "Main", "kind": "person", "since": True})


@pytest.mark.parametrize(("args", "field"), [
    ({}, "name"),
    ({"name": "A", "address": {"street": "x"}}, "name"),
    ({"name": "Ada", "address": {}}, "address.street"),
    ({"name": "Ada", "address": {"street": "x"}, "age": 3}, "age"),
])  # fmt: skip
async def test_invalid_arguments_are_refused_before_the_function_runs(args: dict[str, Any], field: str) -> None:
    with pytest.raises(ToolRefused, match=re.escape(field)):
        await look_up.run(args, context(look_up.card))


@tool(effect="read")
async def halve(value: Annotated[int, AfterValidator(_even)]) -> JsonValue:
    """Halve it."""
    return value // 2


@tool(effect="read")
async def odd_names(json: int, schema: str, model_config: bool, copy: str, class_: str = "c") -> JsonValue:
    """Take names that a pydantic model has for itself."""
    return [json, schema, model_config, copy, class_]


async def test_checks_beyond_the_schema_run() -> None:
    assert (await halve.run({"value": 4}, context(halve.card))).output == 2
    with pytest.raises(ToolRefused, match="must be even"):
        await halve.run({"value": 3}, context(halve.card))
    args: dict[str, JsonValue] = {"json": 1, "schema": "s", "model_config": True, "copy": "x"}
    assert (await odd_names.run(args, context(odd_names.card))).output == [1, "s", True, "x", "c"]


def test_a_default_that_its_type_refuses_is_not_in_the_schema() -> None:
    @tool(effect="read")
    async def book(
        seats: Annotated[int, AfterValidator(_even)] = 3,
        name: Annotated[str, AfterValidator(str.title)] = "nobody",
        day: date = date(2026, 11, 28),
        share: Decimal = Decimal("0.25"),
    ) -> None:
        """Book seats."""

    properties = book.card.parameters["properties"]
    assert isinstance(properties, dict)
    defaults = {name: part.get("default", "absent") for name, part in properties.items() if isinstance(part, dict)}
    assert defaults == {"seats": "absent", "name": "absent", "day": "2026-11-28", "share": "0.25"}


async def test_a_plain_function_runs_in_a_thread_while_other_calls_continue() -> None:
    began, go_on = threading.Event(), threading.Event()

    @tool(effect="read")
    def wait(how: str) -> Any:
        """Wait, and end somehow."""
        began.set()
        assert go_on.wait(5) and threading.current_thread().name == "tool wait"
        if how in ("exit", "panic", "cancel"):
            raise {"exit": SystemExit, "panic": Panic, "cancel": asyncio.CancelledError}[how]
        return asyncio.sleep(0, "done") if how == "awaitable" else ("done" if how == "done" else next(iter(())))

    class Panic(BaseException):
        pass

    cases = [("done", None), ("awaitable", None), *((how, RuntimeError) for how in ("exit", "stop", "panic", "cancel"))]
    for how, error in cases:
        began.clear()
        go_on.clear()
        call = asyncio.create_task(wait.run({"how": how}, context(wait.card)))
        assert await asyncio.to_thread(began.wait, 5)
        go_on.set()
        if error is None:
            assert (await call).output == "done"
            continue
        with pytest.raises(error):
            await call


async def test_a_plain_function_that_cannot_await_fails_instead_of_doing_nothing() -> None:
    @tool(effect="opaque")
    def send(ctx: ToolContext) -> Any:
        """Send, without awaiting."""
        return ctx.send("POST", "http://127.0.0.1:9/")

    with pytest.raises(TypeError, match="async def"):
        await send.run({}, context(send.card))


async def test_threads_of_calls_that_ran_out_of_time_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "MAX_LEFT_THREADS", 2)
    go_on = threading.Event()

    @tool(effect="opaque")
    def hang() -> str:
        """Wait."""
        go_on.wait(20)
        return "done"

    for _ in range(2):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(hang.run({}, context(hang.card)), 0.01)
    with pytest.raises(ToolUnavailable):
        await hang.run({}, context(hang.card))
    go_on.set()
    await until(lambda: not any(thread.is_alive() for thread in threads._left))
    assert (await hang.run({}, context(hang.card))).output == "done"


async def test_a_slow_validator_blocks_neither_the_loop_nor_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def wait(value: str) -> str:
        return "" if any(iter(lambda: go_on.wait(0.01), True)) else value  # without an end until then

    async def ahead(to: Annotated[str, AfterValidator(wait)]) -> Preview:
        return Preview(None, to)

    @tool(effect="opaque", timeout_seconds=0.02, preview=ahead)
    async def send(to: Annotated[str, AfterValidator(wait)]) -> str:
        """Send."""
        return "sent"

    monkeypatch.setattr(tools, "MAX_CHECK_SECONDS", 0.02)
    assert send.preview is not None
    for run in (send.run, send.preview.make):
        with pytest.raises(ToolUnavailable):
            await run({"to": "a"}, context(send.card))
    await until(lambda: not any(thread.is_alive() for thread in threads._left))
    monkeypatch.undo()
    go_on.set()
    patient = replace(send, card=send.card.model_copy(update={"timeout_seconds": 30.0}))
    assert (await patient.run({"to": "a"}, context(send.card))).output == "sent"


async def test_the_context_is_handed_in_reads_declared_secrets_alone_and_prints_none() -> None:
    @tool(effect="read", secrets=("token",))
    async def who(ctx: ToolContext) -> JsonValue:
        """Return the caller's name."""
        return [ctx.user_id, ctx.secret("token")]

    assert who.card.parameters["properties"] == {}
    given = context(who.card, secrets={"token": "s3cret", "other": "hidden"})
    assert (await who.run({}, given)).output == ["user", "s3cret"]
    with pytest.raises(UndeclaredSecret, match="'other'"):
        given.secret("other")
    assert "s3cret" not in repr(given) and "AsyncClient" not in repr(given)
    with pytest.raises(ToolRefused, match="token"):
        await who.run({}, context(who.card))
    with pytest.raises(AttributeError):
        given.user_id = "somebody else"  # type: ignore[misc]


def test_every_tool_but_a_read_needs_approval_unless_its_author_opts_out() -> None:
    cases = [("read", None, False), ("read", True, True), ("local", None, True), ("keyed", None, True),
             ("opaque", None, True), ("opaque", False, False)]  # fmt: skip
    for effect, approval, gated in cases:
        ttl = 60 if effect == "keyed" else None
        made = tool(effect=effect, approval=approval, key_ttl_seconds=ttl)(look_up.function)
        assert made.card.needs_approval is gated, (effect, approval)


def test_the_version_follows_what_a_call_does_and_the_authors_own() -> None:
    covered: list[dict[str, Any]] = [{}, {"effect": "read"}, {"capability": "x"}, {"risk": "high"}, {"version": "2"}]
    changes: list[dict[str, Any]] = [
        *covered, {"approval": False}, {"timeout_seconds": 9}, {"secrets": ("x",)}, {"wants_state": ("x",)},
        {"max_answer_bytes": 1_048_576},
    ]  # fmt: skip
    cards = [tool(**{"effect": "opaque", **change})(look_up.function).card for change in changes]
    assert len({card.version for card in cards}) == len(covered) and len({c.version_1 for c in cards}) == len(changes)
    assert tool(effect="opaque")(look_up.function).card == cards[0]
    retried = tool(effect="read", retry_errors=(ValueError,))(look_up.function)
    assert retried.card == cards[1] and retried.retry_errors == (ValueError,), "it changes no approval"
    assert "max_answer_bytes" not in cards[0].model_dump(mode="json") and cards[-1].max_answer_bytes == 1_048_576


class Words(BaseModel):
    words: set[str] = set()


class Unseen:
    """An object whose text names its address."""


@pytest.mark.parametrize(("hint", "default", "same", "other"), [
    (Annotated[str, AfterValidator(str.upper)], "a", "a", "b"),
    (Annotated[str, AfterValidator(str.upper)], "a", "a", 1),
    (Annotated[set[str], AfterValidator(len)], set("abcdefgh"), set("hgfedcba"), set("abc")),
    (Annotated[Words, AfterValidator(repr)], Words(words=set("abcd")), Words(words=set("dcba")), Words()),
    (Annotated[Any, AfterValidator(repr)], {"a": [1], "b": 2}, {"b": 2, "a": [1]}, {"a": [2], "b": 2}),
    (Any, Unseen(), Unseen(), object()),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:Default value")
def test_the_version_covers_defaults_that_the_schema_cannot_have(
    hint: Any, default: Any, same: Any, other: Any
) -> None:
    cards = []
    for each in (default, same, other):

        def look(value: Any = each) -> None:
            """Look."""

        look.__annotations__ = {"value": hint}
        cards.append(tool(effect="read")(look).card)
    assert all("default" not in each.parameters["properties"]["value"] for each in cards)  # type: ignore[index, call-overload, operator]
    assert cards[0].version == cards[1].version != cards[2].version


def test_a_changed_import_is_shown_by_the_name_that_it_binds() -> None:
    def look(one: int = 1) -> None:
        """Look."""

    card = tool(effect="read")(look).card
    before, after = [
        card.model_copy(update={"code": {f"tools.a:from {module} as D": "", "tools.a:B": module, "tools.a:C": ""}})
        for module in ("fractions import Fraction", "decimal import Decimal")
    ]
    changed = [{"place": f"tools.a:{name}", "change": "changed"} for name in "BD"]
    assert version_difference(before, after) == {"code": changed}


def test_a_card_has_the_version_of_rule_1() -> None:
    def look(one: int = 1, other: str | None = None) -> None:
        """Look."""

    card = tool(effect="read", version="2")(look).card
    of_rule_1 = card.model_dump(mode="json", exclude={"version_rule", "version_1", "code"})
    assert card.version_1 == digest_of({**of_rule_1, "version": "2"}) and card.version_rule == 2


async def _described() -> None:
    """Do nothing."""


def _blocking() -> None:
    """Block."""


def _yielding() -> Iterator[int]:
    """Yield."""
    yield 1


async def _undescribed() -> None:
    pass


async def _untyped(name) -> None:  # type: ignore[no-untyped-def]
    """Take anything."""


async def _starred(*names: str) -> None:
    """Take many."""


async def _field_default(name: str = Field(default="x")) -> None:
    """Misplace a Field."""


async def _late_context(name: str, context: ToolContext) -> None:
    """Put the context last."""


async def _unknown_hint(name: "Nowhere") -> None:  # type: ignore[name-defined]  # noqa: F821
    """Name a type that is not there."""


async def _no_json(run: type[Any]) -> None:
    """Take a class."""


@pytest.mark.parametrize(("function", "given", "name"), [
    (_described, {}, ""), (_described, {"effect": "write"}, "write"), (_blocking, {"effect": "local"}, "async def"),
    (_yielding, {"effect": "read"}, "yield"), (_undescribed, {"effect": "read"}, ""),
    (_untyped, {"effect": "read"}, "name"), (_starred, {"effect": "read"}, ""),
    (_field_default, {"effect": "read"}, "name"), (_late_context, {"effect": "read"}, "context"),
    (_unknown_hint, {"effect": "read"}, "Nowhere"), (_no_json, {"effect": "read"}, ""),
    (_described, {"effect": "keyed"}, "key_ttl_seconds"),
    (_described, {"effect": "opaque", "key_ttl_seconds": 60}, "key_ttl_seconds"),
    (_described, {"effect": "keyed", "key_ttl_seconds": 0}, "key_ttl_seconds"),
    (_described, {"effect": "read", "risk": "huge"}, "risk"),
    (_described, {"effect": "read", "timeout_seconds": 0}, "timeout_seconds"),
    (_described, {"effect": "read", "timeout_seconds": 4_000}, "timeout_seconds"),
    (_described, {"effect": "read", "secrets": "token"}, "secrets"),
    (_described, {"effect": "read", "retry_errors": ValueError}, "retry_errors"),
    (_described, {"effect": "read", "retry_errors": (str,)}, "retry_errors"),
    (_described, {"effect": "opaque", "retry_errors": (ValueError,)}, "retry_errors"),
    *((_described, {"effect": "read", "max_answer_bytes": n}, "max_answer_bytes") for n in (0, -1, 2**40)),
])  # fmt: skip
def test_a_tool_that_is_written_wrongly_is_refused_by_name(function: Any, given: dict[str, Any], name: str) -> None:
    with pytest.raises(ToolDefinitionError) as refused:
        tool(**given)(function)
    assert function.__name__ in str(refused.value) and name in str(refused.value)
    with pytest.raises(ToolDefinitionError, match=function.__name__):  # the decorator without its parentheses
        tool(function)


class _Hostile:
    def __str__(self) -> str:
        raise RuntimeError


_CYCLE: list[Any] = []
_CYCLE.append(_CYCLE)


@pytest.mark.parametrize(("returned", "stored"), [
    (None, None), ({"a": [1, 2.5, True]}, {"a": [1, 2.5, True]}), (Address(street="x"), {"street": "x", "number": 1}),
    (datetime(2026, 11, 21, tzinfo=UTC), "2026-11-21T00:00:00Z"), (Decimal("1.50"), "1.50"), ({1: "a"}, {"1": "a"}),
    ([float("nan"), float("inf"), 10**5_000], [None, None, None]), ("a\x00b", "a\ufffdb"),
    ({"\ud800": "\udfff"}, {"\ufffd": "\ufffd"}), (b"\xff", "_w=="), ({"error": KeyError("a")}, {"error": "'a'"}),
])  # fmt: skip
def test_a_result_becomes_json_that_postgres_can_store(returned: object, stored: JsonValue) -> None:
    assert result_of(returned) == ToolResult(stored)
    made = result_of(ToolResult("ok", state={"count": 1, "text": returned}, working={"gone": None}))  # type: ignore[dict-item]
    assert made == ToolResult("ok", state={"count": 1, "text": stored}, working={"gone": None})
    for no_json in (_Hostile(), _CYCLE, object(), {"a": [print]}):  # the call must not count as done
        for result in (no_json, ToolResult(None, working={"a": no_json})):  # type: ignore[dict-item]
            with pytest.raises(TypeError):
                result_of(result)


@given(
    st.recursive(
        st.none() | st.floats() | st.text() | st.integers(), lambda i: st.lists(i) | st.dictionaries(st.text(), i)
    )
)
def test_any_result_can_be_written_as_strict_json(value: object) -> None:
    text = json.dumps(result_of(value).output, allow_nan=False, ensure_ascii=False)
    assert is_clean(text) and "\\u0000" not in text.replace("\\\\", "")


def made_with(preview: Any) -> Tool:
    """A tool with this preview."""

    @tool(effect="keyed", key_ttl_seconds=60, preview=preview)
    async def pay(context: ToolContext, to: str, cents: int, note: str = "") -> JsonValue:
        """Pay."""
        return None

    return pay


async def balance(context: ToolContext, cents: int) -> Preview:
    """The balance before and after."""
    return Preview({"left": 100, "nan": float("nan")}, {"left": 100 - cents, "nul": "a\0b"})


async def test_a_preview_gets_only_its_named_arguments_and_its_values_can_be_stored() -> None:
    pay = made_with(balance)
    assert pay.card.previews and pay.preview is not None
    made = await pay.preview.make({"to": "Ada", "cents": 30}, context(pay.card))
    assert made == Preview({"left": 100, "nan": None}, {"left": 70, "nul": made.after["nul"]})  # type: ignore[index,call-overload]
    assert "\0" not in str(made.after)


def test_a_preview_changes_the_version_of_its_tool_and_nothing_of_one_without() -> None:
    without, with_one = made_with(None), made_with(balance)
    assert not without.card.previews and without.preview is None
    assert "previews" not in without.card.model_dump(mode="json")
    assert without.card.version_1 != with_one.card.version_1


async def _unknown(context: ToolContext, amount: int) -> Preview:
    return Preview(None, None)


def _awaits_nothing(context: ToolContext) -> Preview:
    return Preview(None, None)


@pytest.mark.parametrize("preview", [_unknown, _awaits_nothing])
def test_a_preview_that_cannot_be_made_is_refused_as_the_tool_is_imported(preview: Any) -> None:
    with pytest.raises(ToolDefinitionError, match="pay"):
        made_with(preview)


async def test_an_invalid_preview_result_raises_a_type_error() -> None:
    async def wrong() -> Any:
        return {"before": 1}

    with pytest.raises(TypeError):
        await ToolPreview.of("pay", wrong, made_with(None).parameters).make({}, context())


async def test_a_preview_sends_only_safe_requests_and_no_idempotency_key() -> None:
    sent: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(200, json={})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        looking = context(card("keyed", key_ttl_seconds=60), http=http, reads_only=True)
        for method in ("POST", "put", "PATCH", "DELETE", "OPTIONS"):
            with pytest.raises(ToolRefused):
                await looking.send(method, "http://target.test/")
        await looking.send("GET", "http://target.test/")
    (read,) = sent
    assert read.method == "GET" and "idempotency-key" not in read.headers
