"""A state: five fields of the kernel, the topology's own, and nothing that is not JSON."""

from typing import Any

import pytest

from perdure.contracts.errors import InvariantBroken
from perdure.graph.state import ADDITIVE, DEEP_MERGE, Field, StateSchema, not_json

SCHEMA = StateSchema((Field("notes", [], ADDITIVE), Field("facts", {"known": []}, DEEP_MERGE), Field("count", 0)))


def test_every_state_has_the_fields_of_the_kernel() -> None:
    kernel: dict[str, Any] = {
        "status": "running",
        "error": None,
        "current_node": None,
        "pending_requests": [],
        "messages": [],
    }
    assert StateSchema().initial() == kernel


def test_a_topology_may_give_the_messages_a_reducer_and_the_status_a_default() -> None:
    schema = StateSchema((Field("messages", [], ADDITIVE), Field("status", "pending")))
    state = schema.apply(schema.initial(), {"messages": [{"role": "user"}]})
    assert state["status"] == "pending"
    assert schema.apply(state, {"messages": [{"role": "tool"}]})["messages"] == [{"role": "user"}, {"role": "tool"}]


def test_two_fresh_states_share_nothing() -> None:
    one, other = SCHEMA.initial(), SCHEMA.initial()
    facts: Any = one["facts"]
    facts["known"].append("x")
    assert other["facts"] == {"known": []}
    assert SCHEMA.initial()["facts"] == {"known": []}


def test_what_overrides_a_default_is_copied_too() -> None:
    given: list[Any] = ["a"]
    state = SCHEMA.initial(notes=given)
    given.append("b")
    assert state["notes"] == ["a"]


def test_a_carried_state_takes_new_fields_and_drops_old_ones() -> None:
    carried: dict[str, Any] = {"status": "awaiting", "notes": ["kept"], "dropped_since": 1}
    assert SCHEMA.resumed(carried) == SCHEMA.initial(status="awaiting", notes=["kept"])


def test_applying_a_patch_leaves_the_state_before_as_it_was() -> None:
    before = SCHEMA.initial(notes=["a"])
    after = SCHEMA.apply(before, {"notes": ["b"], "count": 1, "facts": {"known": [1]}})
    assert before == SCHEMA.initial(notes=["a"])
    assert (after["notes"], after["count"], after["facts"]) == (["a", "b"], 1, {"known": [1]})


@pytest.mark.parametrize(
    ("patch", "names"),
    [
        ({"cuont": 1}, "`n`.*cuont"),
        ({"count": (1, 2)}, "count.*tuple"),
        ({"facts": {"a": [{"b": {1, 2}}]}}, r"facts\.a\[0\]\.b.*set"),
        ({"facts": {1: "x"}}, "facts.*1"),
        ({"count": float("nan")}, "count.*nan"),
        ({"count": float("inf")}, "count.*inf"),
        ({"error": ValueError("no")}, "error.*ValueError"),
        (None, "`n`.*NoneType"),
        ([], "`n`.*list"),
    ],
)
def test_what_is_no_patch_is_refused_with_its_author_and_place(patch: Any, names: str) -> None:
    with pytest.raises(InvariantBroken, match=names) as refused:
        SCHEMA.check(patch, "Node `n`")
    assert refused.value.code == "patch_refused"


def test_a_fresh_state_refuses_an_unknown_field() -> None:
    with pytest.raises(InvariantBroken, match="nots"):
        SCHEMA.initial(nots=[])


@pytest.mark.parametrize("value", [None, True, 0, -1.5, "", [], {}, {"a": [1, {"b": None}]}])
def test_json_is_accepted(value: Any) -> None:
    assert not_json(value, "field") == ""
