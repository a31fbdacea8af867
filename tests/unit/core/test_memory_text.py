"""The memory text: labelled parts, the same for the same memory, nothing where there is none (S0-26)."""

from perdure.core.agents.prompts import RecalledEpisode, memory_message


def test_fields_are_told_one_by_one_in_one_order() -> None:
    told = memory_message({"zeta": 1, "alpha": ["x", 2], "beta": {"k": "v"}})
    assert told.splitlines() == [
        "=== Memory Context ===",
        "[Working Memory -- Scratchpad]",
        "- alpha: x, 2",
        "- beta: {'k': 'v'}",
        "- zeta: 1",
    ]


def test_entities_and_episodes_have_parts_of_their_own() -> None:
    episodes = [
        RecalledEpisode("Asked: a\nAnswered: b", 0.8149, "cosine"),
        RecalledEpisode("Asked: c", 0.25, "full_text"),
    ]
    told = memory_message({"note": "n", "recent_entity_context": ["e1", "e2"]}, episodes)
    assert told.splitlines() == [
        "=== Memory Context ===",
        "[Working Memory -- Scratchpad]",
        "- note: n",
        "[Working Memory -- Extracted Entities]",
        "- recent_entity_context: e1, e2",
        "[Episodic Memory -- Relevant Past Conversations]",
        "- (similarity 0.81) Asked: a",
        "  Answered: b",
        "- (full_text rank 0.25) Asked: c",
    ]


def test_a_part_without_content_is_not_named_and_nothing_is_said_of_nothing() -> None:
    assert memory_message({}) == ""
    assert "Scratchpad" not in memory_message({"extracted_entities": ["e1"]})
    assert "Working" not in memory_message({}, [RecalledEpisode("Asked: a", 0.5, "cosine")])
