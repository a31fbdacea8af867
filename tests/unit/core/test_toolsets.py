"""What is offered of an agent's tools, and what loading more of them comes to."""

from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from perdure.activities.toolbox.engine_tools import MEMORY_BY_NAME
from perdure.contracts.agents import PlanCard
from perdure.contracts.calls import EffectClass
from perdure.core.agents.toolsets import MEMORY, held, is_of_memory, known_toolsets, load, load_card, offered_cards
from perdure.core.calls.arguments import check_arguments

SETS = ("a", "b", MEMORY)
CARDS = [
    PlanCard(name=f"{toolset or 'own'}_{effect.value}", effect=effect, needs_approval=False, toolset=toolset)
    for toolset in ("", *SETS)
    for effect in (EffectClass.READ, EffectClass.OPAQUE)
]
loaded_sets = st.dictionaries(st.sampled_from(SETS), st.booleans())
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([*SETS, "x"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(SETS), inner, max_size=2),
    max_leaves=4,
)
arguments = st.dictionaries(st.sampled_from(["toolset", "include_write_tools", "other"]), anything)


def test_only_what_reads_is_offered_without_write_access() -> None:
    assert offered_cards(CARDS, {"a": False}) == ("own_read", "own_opaque", "a_read")
    assert offered_cards(CARDS, {"a": True}) == ("own_read", "own_opaque", "a_read", "a_opaque")
    assert offered_cards(CARDS, {}) == ("own_read", "own_opaque")


@given(loaded_sets, arguments)
def test_loading_never_takes_anything_away(loaded: dict[str, bool], args: dict[str, JsonValue]) -> None:
    after = load(args, CARDS, loaded)
    assert set(offered_cards(CARDS, loaded)) <= set(offered_cards(CARDS, after.loaded))
    assert after.done or after.loaded == loaded
    if after.done:
        new = after.told["new_tools"]
        assert isinstance(new, list)
        assert {*new} == {*offered_cards(CARDS, after.loaded)} - {*offered_cards(CARDS, loaded)}


@given(arguments)
def test_whatever_fits_the_schema_is_loaded_and_nothing_else_is(args: dict[str, JsonValue]) -> None:
    fits = check_arguments(args, load_card(CARDS).parameters).fault is None
    extra = args.keys() - {"toolset", "include_write_tools"}
    assert load(args, CARDS, {}).done == fits or extra


@given(anything, loaded_sets)
def test_what_a_client_wrote_into_the_memory_opens_known_toolsets_only(
    value: JsonValue, begins_with: dict[str, bool]
) -> None:
    found = held(value, CARDS, begins_with)
    assert found.keys() <= {*known_toolsets(CARDS)}
    for name, writes in begins_with.items():
        assert found[name] >= writes


def test_an_agents_toolsets_keep_the_order_of_its_tools() -> None:
    assert known_toolsets(CARDS) == SETS
    assert load_card(CARDS).version == load_card(CARDS).version


def test_memorys_own_tools_are_told_apart() -> None:
    for capability in ("memory_read", "memory_write"):
        assert is_of_memory(CARDS[0].model_copy(update={"capability": capability}))
    assert not any(map(is_of_memory, CARDS)), "a server may call a toolset of its own `memory`"
    assert all(map(is_of_memory, (tool.card for tool in MEMORY_BY_NAME.values())))
