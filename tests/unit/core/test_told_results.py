"""What is said around a result comes off again, and nothing else does."""

import json

from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from perdure.core.agents.prompts import CHANGED, Told, as_changed, inside, unremembered

VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda of: st.lists(of) | st.dictionaries(st.text(), of)
)


@given(VALUES, st.dictionaries(st.text(), VALUES))
def test_the_tools_own_result_is_what_it_was(result: JsonValue, arguments: dict[str, JsonValue]) -> None:
    assert inside(result) == Told(result)
    assert inside(as_changed(arguments, result)) == Told(result, edited=True)
    assert inside(unremembered("memory_full", "too much", result)) == Told(result)
    both = as_changed(arguments, unremembered("memory_full", "too much", result))
    assert inside(json.loads(json.dumps(both))) == Told(result, edited=True)


def test_what_only_looks_like_a_note_of_ours_is_the_tools_own() -> None:
    owns: list[JsonValue] = [
        {"note": "changed", "arguments": {}, "result": 1},
        {"note": CHANGED, "arguments": {}, "result": 1, "more": 2},
        {"status": "error", "code": "x", "message": "no", "result": None},
    ]
    for own in owns:
        assert inside(own) == Told(own)
