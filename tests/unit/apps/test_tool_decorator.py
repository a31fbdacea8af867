"""perdure/sdk/tools.py: what becomes a tool, what is refused at import, and how a call reaches the function."""

import re
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from jsonschema import Draft202012Validator
from pydantic import AfterValidator, BaseModel, Field, JsonValue

from perdure.contracts.calls import EffectClass
from perdure.sdk.tools import ToolContext, ToolDefinitionError, ToolRefused, ToolResult, tool
from tests.unit.apps.tool_contexts import context


class Address(BaseModel):
    """Nested arguments."""

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


def test_the_card_is_made_from_the_function() -> None:
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


@pytest.mark.parametrize(
    ("args", "field"),
    [
        ({}, "name"),
        ({"name": "A", "address": {"street": "x"}}, "name"),
        ({"name": "Ada", "address": {}}, "address.street"),
        ({"name": "Ada", "address": {"street": "x"}, "age": 3}, "age"),
    ],
)
async def test_arguments_that_do_not_fit_are_a_no_before_the_function_runs(args: dict[str, Any], field: str) -> None:
    with pytest.raises(ToolRefused, match=re.escape(field)):
        await look_up.run(args, context(look_up.card))


async def test_a_check_that_a_schema_cannot_say_is_made_as_well() -> None:
    @tool(effect="read")
    async def halve(value: Annotated[int, AfterValidator(_even)]) -> JsonValue:
        """Halve it."""
        return value // 2

    assert (await halve.run({"value": 4}, context(halve.card))).output == 2
    with pytest.raises(ToolRefused, match="must be even"):
        await halve.run({"value": 3}, context(halve.card))


async def test_a_tool_that_exits_fails_its_call_and_not_its_worker() -> None:
    @tool(effect="read")
    async def leave() -> JsonValue:
        """Leave."""
        raise SystemExit(3)

    with pytest.raises(RuntimeError):
        await leave.run({}, context(leave.card))


async def test_arguments_may_be_named_like_anything_in_pydantic() -> None:
    @tool(effect="read")
    async def odd_names(json: int, schema: str, model_config: bool, copy: str, class_: str = "c") -> JsonValue:
        """Take names that a pydantic model has for itself."""
        return [json, schema, model_config, copy, class_]

    args: dict[str, JsonValue] = {"json": 1, "schema": "s", "model_config": True, "copy": "x"}
    assert (await odd_names.run(args, context(odd_names.card))).output == [1, "s", True, "x", "c"]


async def test_the_context_is_handed_in_and_is_no_argument() -> None:
    @tool(effect="read", secrets=("token",))
    async def who(ctx: ToolContext) -> JsonValue:
        """Say who asks."""
        return [ctx.user_id, ctx.secret("token")]

    assert who.card.parameters["properties"] == {}
    assert (await who.run({}, context(who.card, secrets={"token": "s"}))).output == ["user", "s"]
    with pytest.raises(ToolRefused, match="token"):
        await who.run({}, context(who.card))


@pytest.mark.parametrize(
    ("effect", "approval", "gated"),
    [
        ("read", None, False),
        ("read", True, True),
        ("local", None, True),
        ("keyed", None, True),
        ("opaque", None, True),
        ("opaque", False, False),
    ],
)
def test_all_but_a_read_needs_an_approval_unless_the_author_says_so(
    effect: str, approval: bool | None, gated: bool
) -> None:
    made = tool(effect=effect, approval=approval, key_ttl_seconds=60 if effect == "keyed" else None)(look_up.function)
    assert made.card.needs_approval is gated


def test_the_version_follows_every_part_of_the_card_and_the_authors_own() -> None:
    plain = tool(effect="opaque")(look_up.function)
    others = [
        tool(effect="read")(look_up.function),
        tool(effect="opaque", approval=False)(look_up.function),
        tool(effect="opaque", capability="x")(look_up.function),
        tool(effect="opaque", risk="high")(look_up.function),
        tool(effect="opaque", timeout_seconds=9)(look_up.function),
        tool(effect="opaque", secrets=("x",))(look_up.function),
        tool(effect="opaque", wants_state=("x",))(look_up.function),
        tool(effect="opaque", version="2")(look_up.function),
    ]
    versions = [made.card.version for made in (plain, *others)]
    assert len(set(versions)) == len(versions)
    assert tool(effect="opaque")(look_up.function).card == plain.card


async def _described() -> None:
    """Do nothing."""


def _blocking() -> None:
    """Block."""


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


@pytest.mark.parametrize(
    ("function", "given", "name"),
    [
        (_described, {}, ""),
        (_described, {"effect": "write"}, "write"),
        (_blocking, {"effect": "read"}, ""),
        (_undescribed, {"effect": "read"}, ""),
        (_untyped, {"effect": "read"}, "name"),
        (_starred, {"effect": "read"}, ""),
        (_field_default, {"effect": "read"}, "name"),
        (_late_context, {"effect": "read"}, "context"),
        (_unknown_hint, {"effect": "read"}, "Nowhere"),
        (_no_json, {"effect": "read"}, ""),
        (_described, {"effect": "keyed"}, "key_ttl_seconds"),
        (_described, {"effect": "opaque", "key_ttl_seconds": 60}, "key_ttl_seconds"),
        (_described, {"effect": "keyed", "key_ttl_seconds": 0}, "key_ttl_seconds"),
        (_described, {"effect": "read", "risk": "huge"}, "risk"),
        (_described, {"effect": "read", "timeout_seconds": 0}, "timeout_seconds"),
        (_described, {"effect": "read", "timeout_seconds": 4_000}, "timeout_seconds"),
        (_described, {"effect": "read", "secrets": "token"}, "secrets"),
    ],
)
def test_a_tool_that_is_not_written_as_it_must_be_is_refused_with_its_name(
    function: Any, given: dict[str, Any], name: str
) -> None:
    with pytest.raises(ToolDefinitionError) as refused:
        tool(**given)(function)
    assert function.__name__ in str(refused.value) and name in str(refused.value)


def test_the_decorator_without_its_parentheses_says_what_to_write() -> None:
    with pytest.raises(ToolDefinitionError, match="_described"):
        tool(_described)


def test_a_limit_of_answers_is_part_of_the_version_only_where_it_is_set() -> None:
    async def look(name: str) -> str:
        """Look."""
        return name

    plain, limited = tool(effect="read")(look).card, tool(effect="read", max_answer_bytes=1_048_576)(look).card
    assert "max_answer_bytes" not in plain.model_dump(mode="json") and limited.max_answer_bytes == 1_048_576
    assert plain.version != limited.version
    for wrong in (0, -1, 2**40):
        with pytest.raises(ToolDefinitionError, match="max_answer_bytes"):
            tool(effect="read", max_answer_bytes=wrong)(look)
