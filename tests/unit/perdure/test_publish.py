"""perdure/apps/publish.py: which cards an agent gets, and when its version changes."""

from pathlib import Path

import pytest

from activities.toolbox.entities import CORE_ALWAYS, CORE_BY_NAME
from contracts.agents import AgentDefinition
from contracts.errors import InvariantBroken
from perdure.apps import ALWAYS_OFFERED, App, Engine, publish
from perdure.tools import tool
from tests.unit.perdure.tool_contexts import card

CORE = [card(name=name) for name in ("entity_resolve", "context_assemble", "create_entity")]


@tool(effect="read")
async def look(name: str) -> str:
    """Look."""
    return name


@tool(effect="opaque")
async def touch(name: str) -> str:
    """Touch."""
    return name


def app(**fields: object) -> App:
    agent = AgentDefinition.model_validate({"id": "a", "title": "A", "topology": "t", **fields})
    return App("app", "App", Path("nowhere"), (agent,), {"look": look, "touch": touch})


def names(given: App) -> list[str]:
    (published,) = publish(given, CORE)
    return [card.name for card in published.cards]


def test_core_tools_come_first_and_none_comes_twice() -> None:
    assert names(app(tools=("touch", "entity_resolve", "look", "touch"))) == [
        "entity_resolve",
        "context_assemble",
        "touch",
        "look",
    ]


def test_a_core_tool_that_changes_something_is_offered_only_where_it_is_named() -> None:
    assert "create_entity" not in names(app())
    assert names(app(tools=("create_entity",)))[-1] == "create_entity"


def test_the_names_that_no_app_may_take_are_those_of_the_core_tools() -> None:
    assert set(Engine().core_tools) == set(CORE_BY_NAME)
    assert [tool.card.name for tool in CORE_ALWAYS] == list(ALWAYS_OFFERED)


def test_an_agent_may_do_without_core_tools() -> None:
    assert names(app(core_tools=False)) == []
    assert names(app(core_tools=False, tools=("context_assemble",))) == ["context_assemble"]


def test_the_version_follows_definition_and_cards_and_nothing_else() -> None:
    plain = publish(app(tools=("look",)), CORE)
    assert publish(app(tools=("look",)), CORE) == plain
    others = [
        publish(app(tools=("look",), title="B"), CORE),
        publish(app(tools=("look", "touch")), CORE),
        publish(app(tools=("look",), script={"rules": []}), CORE),
        publish(app(tools=("look",)), [CORE[0].model_copy(update={"version": "2"}), *CORE[1:]]),
    ]
    versions = [published.version for each in (plain, *others) for published in each]
    assert len(set(versions)) == len(versions)


def test_the_order_in_which_core_cards_are_given_does_not_matter() -> None:
    assert publish(app(), CORE[::-1]) == publish(app(), CORE)


def test_a_tool_that_nobody_has_is_our_own_mistake_by_then() -> None:
    with pytest.raises(InvariantBroken, match="nothing_at_all"):
        publish(app(tools=("nothing_at_all",)), CORE)
