"""The prompt of a turn: its parts, their order, what the window keeps, and the templates of an app's texts."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue
from syrupy.assertion import SnapshotAssertion

from perdure.contracts.agents import AgentDefinition
from perdure.contracts.messages import Role, WindowPolicy
from perdure.contracts.skills import SkillText
from perdure.core.agents import prompts, templates
from perdure.core.agents.prompts import (
    Persona,
    PlainResult,
    PromptMessage,
    User,
    WindowedMessage,
    base_message,
    select_messages,
    unwrap_result,
)
from perdure.core.agents.templates import VARIABLES, Stage, archive_refusal, fill_variables
from perdure.core.agents.toolsets import loaded_skills
from perdure.core.calls.description import BadTemplate, arguments_on_one_line, describe_call, names_in
from perdure.core.text import estimated_tokens
from tests.repo.test_committed_text import ANYWHERE
from tests.scale import sized
from tests.unit.core.skilled import agent, agents, injections, skill, texts

ANN = User("Ann", "clerk")
HOST = {"persona": "Be a host.", "persona_key": "host"}
PLATFORM = Persona("platform_default", "platform_default", prompts.PLATFORM_DEFAULT_PERSONA)
ALL = WindowPolicy()
USER_VALUES = {"user_name": "Ann", "user_role": "clerk"}
pieces = st.sampled_from([*(f"{{{{{name}}}}}" for name in VARIABLES), "{{", "}}", "{{x}}", "\n", "text", " "])
BOTH = (Stage.PRE_PRODUCTION, Stage.ACTIVE)
VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda of: st.lists(of) | st.dictionaries(st.text(), of)
)


def said_first(definition: AgentDefinition, user: User, override: str | None = None) -> str:
    """The prefix, of the persona that the agent has."""
    return prompts.system_prefix(definition, prompts.persona_of(definition), user, override)


@pytest.mark.parametrize(("definition", "expected"), [
    (agent(skill("a", **HOST), root_skill="a", persona="Own.", persona_key="own"), Persona("own", "agent", "Own.")),
    (agent(skill("a", **HOST), root_skill="a", persona="Own."), Persona("agent", "agent", "Own.")),
    (agent(skill("a", **HOST), root_skill="a"), Persona("host", "root_skill", "Be a host.")),
    (agent(skill("a", dependencies=("b",)), skill("b", **HOST), root_skill="a"), PLATFORM),
    (agent(skill("b", **HOST)), PLATFORM),
    (agent(tools=("t",)), PLATFORM),
    (agent(), Persona("platform_default", "platform_default", prompts.GENERAL_PERSONA)),
])  # fmt: skip
def test_the_agents_own_persona_comes_before_its_root_skills(definition: AgentDefinition, expected: Persona) -> None:
    assert prompts.persona_of(definition) == expected


def test_a_general_agents_prompt_names_no_domain_and_refuses_domain_work(snapshot: SnapshotAssertion) -> None:
    said = said_first(agent(), User())
    assert not ANYWHERE.search(said) and said == snapshot
    assert prompts.template_messages(agent(), loaded_skills(agent(), ["a"]), ANN) == []


def test_the_prefix_is_persona_user_block_and_manifest_or_the_callers_own_prompt() -> None:
    brewing = skill("a", triggers=("brew", "kettle"), domain_tags=("drinks",))
    skilled = agent(brewing, skill("b"), root_skill="b", persona="Be kind.")
    head = ["Be kind.", "", "=== User ===", "Name: Ann", "Role: clerk", "", "=== Skills ==="]
    *before, how, first, second = said_first(skilled, ANN).splitlines()
    assert before == head and "SKILL_SELECT:<id>" in how
    assert (first, second) == ("- a: A. Does a. Triggers: brew, kettle. Tags: drinks.", "- b: B. Does b.")
    assert said_first(skilled, ANN, "My own.") == "My own."
    assert prompts.skill_manifest([]) == ""


def test_an_activated_skill_is_one_message_with_its_sections_in_order() -> None:
    artifacts = (SkillText(name="one.md", text="First.\n"), SkillText(name="two.md", text="Second."))
    given_skill = skill("a", body="## Steps\n1. Do.\n", artifacts=artifacts)
    head, *sections = prompts.skill_activation(given_skill, "Mary: a person").split("\n\n")
    assert head == "=== Skill Activated: A ===\n## Description\nDoes a."
    assert sections[:2] == ["## Steps\n1. Do.", "## Artifact: one.md\nFirst."]
    assert sections[2:] == ["## Artifact: two.md\nSecond.", "## Entity Context\nMary: a person"]
    assert prompts.skill_activation(skill("b")) == "=== Skill Activated: B ===\n## Description\nDoes b.\n\nBody of b."
    assert (prompts.skill_tier(given_skill), prompts.skill_tier(skill("b"))) == (3, 2)


def test_templates_of_loaded_skills_are_filled_and_come_in_the_agents_order() -> None:
    template = SkillText(name="t.md", text="{{user_name}} ({{ user_role }}) at {{agent_title}} with {{skill_name}}.")
    skilled = agent(skill("a", templates=(template,)), skill("b"), skill("c", templates=(template,)), root_skill="c")
    said = [f"Ann (clerk) at The agent with {name}." for name in "AC"]
    assert prompts.template_messages(skilled, loaded_skills(skilled, ["a"]), ANN) == said
    assert prompts.template_messages(skilled, loaded_skills(skilled, []), User()) == ["user () at The agent with C."]


@pytest.mark.parametrize("model", ["openai/gpt-4o", "anthropic/claude", "scripted"])
@given(definition=agents, user=st.builds(User, texts, texts), first=injections, second=injections, memory=texts)
def test_loading_and_unloading_skills_leaves_the_prefix_byte_for_byte(
    model: str, definition: AgentDefinition, user: User, first: list[str], second: list[str], memory: str
) -> None:
    prefixes = set()
    for injected in (first, second, [], first + second):
        loaded = loaded_skills(definition, injected)
        templates = prompts.template_messages(definition, loaded, user)
        activations = [PromptMessage(Role.SYSTEM, prompts.skill_activation(each)) for each in loaded]
        said = [*activations, PromptMessage(Role.USER, "hello")]
        messages = prompts.wire_messages(said_first(definition, user), memory, said, templates)
        sent = prompts.with_cache_breakpoint(messages, model)
        prefixes.add(json.dumps(sent[0]).encode())
        # What the skills bring follows: each template is a system message of its own, none is there twice.
        shown = [text for text in templates if text]
        head = 1 + bool(memory)
        assert [message["content"] for message in sent[head : head + len(shown)]] == shown
        assert [message["role"] for message in sent[: head + len(shown)]] == ["system"] * (head + len(shown))
        assert len(sent) == head + len(shown) + len(said)
    assert len(prefixes) == 1


@pytest.mark.parametrize(("marked", "models"), [
    (True, "anthropic/claude-sonnet bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0 vertex_ai/claude-4-5"),
    (False, "bedrock/amazon.nova-pro-v1:0 vertex_ai/gemini-2.5-pro openai/gpt-4o gpt-4o"),
    (False, "openrouter/anthropic/claude anthropics/claude scripted"),
])  # fmt: skip
def test_only_anthropics_own_path_gets_a_cache_breakpoint(marked: bool, models: str) -> None:
    marked_base = [{"type": "text", "text": "base", "cache_control": {"type": "ephemeral"}}]
    for model in models.split():
        messages = prompts.wire_messages("base", "memory", [PromptMessage(Role.USER, "hello")], ["template"])
        sent = prompts.with_cache_breakpoint(messages, model)
        assert sent == [{"role": "system", "content": marked_base if marked else "base"}, *messages[1:]], model
        assert messages[0]["content"] == "base"
    for unfit in ([], [{"role": "user", "content": "x"}], [{"role": "system", "content": ""}]):
        assert prompts.with_cache_breakpoint(unfit, "anthropic/claude") == unfit  # type: ignore[arg-type]


def test_the_span_of_a_prompt_states_its_persona_source_and_size() -> None:
    skilled = agent(skill("a", **HOST), root_skill="a")
    persona, base = prompts.persona_of(skilled), said_first(skilled, ANN)
    facts = prompts.prompt_facts(persona, base, ["x" * 8], overridden=False, left_out_count=3)
    assert (facts.persona_key, facts.persona_source, facts.context_template_count) == ("host", "root_skill", 1)
    assert facts.user_identity_injected and facts.token_estimate == estimated_tokens(base) + 2
    own = prompts.prompt_facts(persona, said_first(skilled, ANN, "Mine."), [], overridden=True, left_out_count=0)
    assert (own.persona_key, own.persona_source, own.user_identity_injected) == ("", "caller", False)
    assert own.token_estimate == 2


@pytest.mark.parametrize(("fields", "recalled"), [
    ({"z": 1, "a": ["x", 2], "b": {"k": "v"}}, []), ({"recent_entity_context": ["e1", "e2"]}, []),
    ({"note": "n", "recent_entity_context": ["e1", "e2"]}, []), ({}, [("Asked: a\nAnswered: b", 0.8149, "cosine")]),
    ({}, [("A: c", 0.25, "full_text")]),
], ids=["fields", "entities", "both", "by vector", "by text"])  # fmt: skip
def test_memory_is_shown_with_its_fields_and_recalled_texts(
    fields: dict[str, JsonValue], recalled: list[Any], snapshot: SnapshotAssertion
) -> None:
    assert prompts.memory_message(fields, [prompts.RecalledEpisode(*each) for each in recalled]) == snapshot
    assert prompts.memory_message({}, []) == ""


def test_the_base_message_is_persona_and_user_or_the_callers_prompt(snapshot: SnapshotAssertion) -> None:
    assert base_message("Be kind.", "Ann", "clerk", None) == snapshot
    assert base_message("Be kind.", "Ann", "", None) == base_message("Be kind.", "Ann", "", "") == snapshot
    assert base_message("Be kind.", "", "", None) == snapshot
    assert base_message("", "Ann", "", None).startswith(prompts.PLATFORM_DEFAULT_PERSONA)
    assert base_message("Be kind.", "Ann", "clerk", "My own prompt.") == "My own prompt."


texts = st.text(max_size=20)
plain = st.builds(PromptMessage, st.sampled_from([Role.USER, Role.SYSTEM, Role.ASSISTANT]), texts)
call = st.fixed_dictionaries({"key": texts, "tool": texts, "arguments": texts, "call_id": texts})
asking = st.builds(PromptMessage, st.just(Role.ASSISTANT), texts, st.lists(call, min_size=1, max_size=3))
answering = st.builds(PromptMessage, st.just(Role.TOOL), texts, st.just(()), texts)


@given(texts, texts, st.lists(plain | asking | answering, max_size=6))
def test_the_wire_form_starts_with_the_base_and_keeps_order(base: str, memory: str, said: list[PromptMessage]) -> None:
    sent = prompts.wire_messages(base, memory, said)
    assert sent[0] == {"role": "system", "content": base}
    head = 2 if memory else 1
    assert [message["content"] for message in sent[1:head]] == ([memory] if memory else [])
    spoken = [each for each in said if each.role is not Role.ASSISTANT or each.calls or each.content.strip()]
    for message, one in zip(spoken, sent[head:], strict=True):
        text = message.content if message.content.strip() or not message.calls else None
        assert (one["role"], one["content"]) == (message.role.value, text)
        assert ("tool_call_id" in one) == (message.role is Role.TOOL)
        calls: Any = one.get("tool_calls", [])
        assert [each["function"]["arguments"] for each in calls] == [each["arguments"] for each in message.calls]


@pytest.mark.sized
@settings(max_examples=sized(100, 20))
@given(VALUES, st.dictionaries(st.text(), VALUES))
def test_a_tools_result_is_read_back_from_any_note(result: JsonValue, arguments: dict[str, JsonValue]) -> None:
    assert unwrap_result(result) == PlainResult(result)
    assert unwrap_result(prompts.with_changed_arguments(arguments, result)) == PlainResult(result, edited=True)
    assert unwrap_result(prompts.with_memory_error("memory_full", "too much", result)) == PlainResult(result)
    both = prompts.with_changed_arguments(arguments, prompts.with_memory_error("memory_full", "too much", result))
    assert unwrap_result(json.loads(json.dumps(both))) == PlainResult(result, edited=True)


def test_a_result_that_only_resembles_a_note_is_unchanged() -> None:
    note: dict[str, JsonValue] = {"arguments": {}, "result": 1}
    failed: dict[str, JsonValue] = {"status": "error", "code": "x", "message": "no", "result": None}
    for own in (note | {"note": "changed"}, note | {"note": prompts.CHANGED_BY_REVIEWER, "more": 2}, failed):
        assert unwrap_result(own) == PlainResult(own)


def windowed_messages(line: str) -> list[WindowedMessage]:
    """A conversation in shorthand: S system, U user, A assistant, `A(x)` with a call, `x!` its answer; `:9` tokens."""
    messages = []
    for index, word in enumerate(line.split()):
        what, _, tokens = word.partition(":")
        answers = what.removesuffix("!") if what.endswith("!") else ""
        role = Role.TOOL if answers else {"S": Role.SYSTEM, "U": Role.USER, "A": Role.ASSISTANT}[what[0]]
        calls = tuple(what[2:-1].split(",")) if "(" in what else ()
        messages.append(WindowedMessage(index, role, int(tokens or 1), call_ids=calls, answers=answers))
    return messages


@pytest.mark.parametrize(("line", "policy", "kept"), [
    ("", ALL, []),
    ("U A U", ALL, [0, 1, 2]),
    ("U A(x) U", ALL, [0, 2]),  # orphans of both kinds go, whatever the policy
    ("U A(x,y) x! U", ALL, [0, 3]),
    ("U x! A U", ALL, [0, 2, 3]),
    ("U A(x) x! A U", ALL, [0, 1, 2, 3, 4]),
    ("U A(x)", ALL, [0]),
    ("U A(x) U x!", ALL, [0, 1, 3, 2]),  # an answer that came late stands behind its call
    ("U A U A U", WindowPolicy(max_messages=2), [0, 3, 4]),  # the last N, and the first user message
    ("U A U A U", WindowPolicy(max_messages=2, keep_first_user=False), [3, 4]),
    ("U A U A U", WindowPolicy(max_messages=0), [0, 4]),
    ("S U A S U A U", WindowPolicy(max_messages=1), [0, 1, 3, 6]),  # system messages stay and take no room
    ("U A(x) x! U", WindowPolicy(max_messages=2), [0, 3]),  # a round stands or falls whole
    ("U A(x) x! U", WindowPolicy(max_messages=3), [0, 1, 2, 3]),
    ("U A(x,y) x! y!", WindowPolicy(max_messages=1), [0, 1, 2, 3]),  # the newest, even if too large
    ("U A(x) x!:900 S", WindowPolicy(max_tokens=10), [0, 1, 2, 3]),
    ("U A:50 U:900", WindowPolicy(max_tokens=10), [0, 2]),
    ("U A:1 U:50 A:1 U:1", WindowPolicy(max_tokens=5), [0, 3, 4]),  # nothing older than what did not fit: no holes
    ("U A:3 U:3 A:3 U:3", WindowPolicy(max_tokens=6), [0, 3, 4]),
])  # fmt: skip
def test_a_window_keeps_exactly_these_messages(line: str, policy: WindowPolicy, kept: list[int]) -> None:
    assert select_messages(windowed_messages(line), policy) == kept


policies = st.builds(
    WindowPolicy,
    max_messages=st.none() | st.integers(0, 6),
    max_tokens=st.none() | st.integers(0, 40),
    keep_first_user=st.booleans(),
)


@st.composite
def conversations(draw: st.DrawFn) -> list[WindowedMessage]:
    """Rounds in order, with answers that are missing, early, doubled or of no call."""
    messages: list[WindowedMessage] = []
    made = 0
    for _ in range(draw(st.integers(0, 8))):
        role = draw(st.sampled_from([Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.ASSISTANT, Role.TOOL]))
        tokens, answers = draw(st.integers(0, 20)), f"c{draw(st.integers(0, made + 1))}" if role is Role.TOOL else ""
        calls = tuple(f"c{made + n}" for n in range(draw(st.integers(0, 2)))) if role is Role.ASSISTANT else ()
        made += len(calls)
        messages.append(WindowedMessage(len(messages), role, tokens, call_ids=calls, answers=answers))
        for call_id in calls:
            if draw(st.integers(0, 3)):
                messages.append(WindowedMessage(len(messages), Role.TOOL, draw(st.integers(0, 20)), answers=call_id))
    return messages


def whole(messages: list[WindowedMessage]) -> bool:
    """Every call is answered right behind its message, and every answer has its call."""
    heads = [place for place, message in enumerate(messages) if message.role is not Role.TOOL]
    return heads[:1] == [0][: len(messages)] and all(
        {answer.answers for answer in messages[head + 1 : end]} == set(messages[head].call_ids)
        for head, end in pairwise([*heads, len(messages)])
    )


@given(conversations(), policies)
def test_selected_messages_are_ordered_without_orphans(messages: list[WindowedMessage], policy: WindowPolicy) -> None:
    kept = select_messages(messages, policy)
    assert len(kept) == len(set(kept))
    assert whole([messages[index] for index in kept])
    repaired = select_messages(messages, ALL)
    assert kept == [index for index in repaired if index in kept]
    assert kept[-1:] == repaired[-1:], "the newest message that can be sent survives"
    heads = [index for index in kept if messages[index].role is not Role.TOOL]
    assert heads == sorted(heads)


@given(conversations(), st.integers(0, 6))
def test_only_the_newest_round_may_be_larger_than_the_window(messages: list[WindowedMessage], most: int) -> None:
    kept = select_messages(messages, WindowPolicy(max_messages=most, keep_first_user=False))
    others = [messages[index] for index in kept if messages[index].role is not Role.SYSTEM]
    starts = [place for place, message in enumerate(others) if message.role is not Role.TOOL]
    assert len(others) <= most or not starts or len(starts) == 1


@pytest.mark.parametrize(("past", "budget", "left_out"), [
    *((0, 100, 0), (100, 100, 0), (101, 100, 50), (150, 100, 50), (151, 100, 100), (102_886, 32_000, 80_000)),
    *((7, 0, 7), (7, 1, 6)),
])  # fmt: skip
def test_a_default_window_leaves_out_steps_of_half_a_budget(past: int, budget: int, left_out: int) -> None:
    assert prompts.tokens_left_out(past, budget) == left_out


@given(st.integers(0, 10_000), st.integers(2, 3_000))
def test_a_default_window_is_filled_by_half_and_starts_alike_within_a_step(past: int, budget: int) -> None:
    left_out, step = prompts.tokens_left_out(past, budget), budget // 2
    assert past - left_out <= budget and (not left_out or past - left_out > budget - step)
    rest_of_step = budget - (past - left_out) if past > budget else 0
    assert prompts.tokens_left_out(past + rest_of_step, budget) == left_out
    assert left_out <= prompts.tokens_left_out(past + rest_of_step + 1, budget) <= left_out + step


@pytest.mark.parametrize(("text", "expected"), [
    ("Dear {{user_name}}, {{ user_role }}", "Dear Ann, clerk"),
    ("{{agent_title}}|{{skill_name}}", "|"),
    *((text, text) for text in ("{user_name} {{ }} {{colour}}", "{{user_name", "")),
])  # fmt: skip
def test_a_variable_is_filled_in_and_other_text_stays(text: str, expected: str) -> None:
    assert fill_variables(text, USER_VALUES) == expected
    assert fill_variables("{{user_name}}", USER_VALUES | {"user_name": "{{user_role}}"}) == "{{user_role}}", (
        "filled in once"
    )


@pytest.mark.parametrize(("text", "found"), [
    ("{{user_name}} {{ skill_name }}", []), ("a\n{{colour}} {{user_name}} {{}}", [(2, "colour"), (2, "")]),
    ("{{user_name}} {{", [(1, "")]), ("{{user\nname}}", [(1, "")]), ("a } b }} {c}", []),
    ("{{user_name.__class__}}", [(1, "user_name.__class__")]),
])  # fmt: skip
def test_a_mark_without_a_variable_is_found_with_its_line(text: str, found: list[tuple[int, str]]) -> None:
    assert list(templates.unknown_marks(text)) == found


@given(st.lists(pieces, max_size=8).map("".join))
def test_a_text_without_unknown_marks_has_none_left_after_filling(text: str) -> None:
    if not list(templates.unknown_marks(text)):
        assert "{{" not in fill_variables(text, dict.fromkeys(VARIABLES, "value"))


@pytest.mark.parametrize(("template", "args", "sentence"), [
    ("Refund order {order}", {"order": "37"}, 'Refund order "37"'),
    ("Pay {amount} to {to}", {"amount": 12, "to": "ann"}, 'Pay 12 to "ann"'),
    ("Set {{x}} to {x}", {"x": True}, "Set {x} to true"),
    ("Tag {tags}", {"tags": ["a", {"b": 1}]}, 'Tag ["a", {"b": 1}]'),
    ("Send {text}", {"text": '". Nothing is sent. "'}, 'Send "\\". Nothing is sent. \\""'),
    ("Send {text}", {"text": "{order}"}, 'Send "{order}"'), ("Pay {amount|all of it}", {}, "Pay all of it"),
    ("Pay {amount|all of it}", {"amount": 0}, "Pay 0"),
    ("Pay {amount|all of it} to {to|nobody}", {"amount": None, "to": ""}, "Pay all of it to nobody"),
    ("Send {text|nothing}", {"text": "{order|x}"}, 'Send "{order|x}"'), ("", {"order": "37"}, ""),
])  # fmt: skip
def test_a_template_is_filled_from_the_arguments(template: str, args: dict[str, JsonValue], sentence: str) -> None:
    assert describe_call(template, args) == sentence


def test_an_argument_that_is_missing_is_reported(snapshot: SnapshotAssertion) -> None:
    assert describe_call("Pay {amount}", {}) == describe_call("Pay {amount}", {"amount": None}) == snapshot


@pytest.mark.parametrize(
    "template", ["a {", "a }", "{1}", "{a.b}", "{a!r}", "{}", "{|x}", "{a|}", "two\nlines", "x" * 301]
)
def test_a_template_that_cannot_be_filled_is_refused(template: str) -> None:
    with pytest.raises(BadTemplate):
        names_in(template)
    assert names_in("Pay {amount|all of it} for {{this}} to {to}, {to}") == {"amount", "to"}


@given(st.text(max_size=70))
def test_an_argument_stays_inside_its_quotes_whatever_it_contains(text: str) -> None:
    sentence = describe_call("Send {text} now", {"text": text})
    if sentence.endswith('" now'):
        assert json.loads(sentence.removeprefix("Send ").removesuffix(" now")) == text


def test_arguments_are_shown_on_one_line_as_far_as_there_is_room() -> None:
    assert arguments_on_one_line({}) == ""
    assert arguments_on_one_line({"note": "", "name": "web", "count": 0}) == 'name: "web", count: 0, note: ""'
    long = arguments_on_one_line({"a": "x" * 100, "b": "y" * 70, "c": 1})
    assert long.startswith('a: "xxx') and "22" in long and ", b:" in long and long.endswith("y…")
    assert describe_call("Send {text}", {"text": "x" * 100}).startswith('Send "' + "x" * 79 + "… (22")
    assert "\n" not in arguments_on_one_line({"a": "x\ny"})


@pytest.mark.parametrize(("stages", "author", "roles", "code"), [
    *((BOTH, False, roles, None) for roles in ({"reviewer"}, {"admin"}, {"requester", "admin"})),
    *((BOTH, False, roles, "role_required") for roles in ({"requester"}, set[str]())),
    # An author sees the own draft, and no other user does.
    *((BOTH[1:], True, roles, "own_draft") for roles in ({"reviewer"}, {"admin", "reviewer"})),
    (BOTH[1:], True, {"requester"}, "role_required"),
    (BOTH[:1], True, {"reviewer"}, None),
])  # fmt: skip
def test_reviewers_promote_drafts(stages: tuple[Stage, ...], author: bool, roles: set[str], code: str | None) -> None:
    for to in stages:
        refused = templates.promotion_refusal(to, author, roles)
        assert (refused and (refused.http, refused.code)) == (code and (403, code))


@pytest.mark.parametrize("stage", list(Stage))
@pytest.mark.parametrize("author", [True, False])
def test_authors_archive_their_own_draft_and_reviewers_any_version(stage: Stage, author: bool) -> None:
    assert archive_refusal(stage, author, {"reviewer"}) is None
    assert (archive_refusal(stage, author, {"requester"}) is None) is (author and stage is Stage.DRAFT)


def test_a_mark_without_a_variable_is_reported_with_its_line() -> None:
    refused = templates.text_refusal("You serve {{user_name}}.\nIn {{colour}}, {{ skill_name }}.\n{{")
    assert refused is not None and (refused.http, refused.code) == (422, "template_variable_unknown")
    assert refused.details["unknown"] == [{"line": 2, "name": "colour"}, {"line": 3, "name": ""}]
    assert "user_name" in str(refused.details["known"])
    assert templates.text_refusal("{{user_name}} {{user_role}} {{agent_title}} {{skill_name}} { } }}") is None
