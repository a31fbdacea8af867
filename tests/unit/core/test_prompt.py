"""What a model is sent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.messages import Role
from perdure.core.agents.prompts import (
    PLATFORM_DEFAULT_PERSONA,
    Said,
    base_message,
    skill_list,
    skill_message,
    wire,
)


@pytest.mark.parametrize(
    ("persona", "name", "role", "override", "expected"),
    [
        ("Be kind.", "Ann", "clerk", None, "Be kind.\n\n=== User ===\nName: Ann\nRole: clerk"),
        ("Be kind.", "Ann", "", None, "Be kind.\n\n=== User ===\nName: Ann"),
        ("Be kind.", "", "", None, "Be kind.\n\n=== User ===\nName: user"),
        ("", "Ann", "", None, f"{PLATFORM_DEFAULT_PERSONA}\n\n=== User ===\nName: Ann"),
        ("Be kind.", "Ann", "clerk", "My own prompt.", "My own prompt."),
        ("Be kind.", "Ann", "", "", "Be kind.\n\n=== User ===\nName: Ann"),
    ],
)
def test_the_base_message_is_persona_and_user_or_the_callers_own(
    persona: str, name: str, role: str, override: str | None, expected: str
) -> None:
    assert base_message(persona, name, role, override) == expected


def test_skills_are_listed_by_id_and_injected_with_their_sections() -> None:
    assert skill_list([]) == ""
    assert skill_list([("a", "First."), ("b", "Second.")]).splitlines()[-2:] == ["- a: First.", "- b: Second."]
    assert skill_message("A", "First.", "Do it.").startswith("=== Skill Activated: A ===\n## Description\nFirst.")


texts = st.text(max_size=20)
plain = st.builds(Said, st.sampled_from([Role.USER, Role.SYSTEM, Role.ASSISTANT]), texts)
call = st.fixed_dictionaries({"key": texts, "tool": texts, "arguments": texts, "call_id": texts})
asking = st.builds(Said, st.just(Role.ASSISTANT), texts, st.lists(call, min_size=1, max_size=3))
answering = st.builds(Said, st.just(Role.TOOL), texts, st.just(()), texts)


@given(texts, texts, st.lists(plain | asking | answering, max_size=6))
def test_the_wire_form_has_the_base_first_and_every_message_in_its_place(
    base: str, memory: str, said: list[Said]
) -> None:
    sent = wire(base, memory, said)
    assert sent[0] == {"role": "system", "content": base}
    head = 2 if memory else 1
    assert [message["content"] for message in sent[1:head]] == ([memory] if memory else [])
    assert len(sent) == head + len(said)
    for message, one in zip(said, sent[head:], strict=True):
        assert (one["role"], one["content"]) == (message.role.value, message.content)
        assert ("tool_call_id" in one) == (message.role is Role.TOOL)
        calls = one.get("tool_calls", [])
        assert isinstance(calls, list)
        # Ids on the wire are our own keys: providers repeat theirs.
        assert [each["id"] for each in calls if isinstance(each, dict)] == [each["key"] for each in message.calls]


@given(texts, st.lists(plain, max_size=4), st.lists(plain, max_size=4))
def test_a_longer_conversation_leaves_the_prefix_as_it_was(base: str, said: list[Said], more: list[Said]) -> None:
    before = wire(base, "memory", said)
    assert wire(base, "memory", [*said, *more])[: len(before)] == before
