"""How the scripted model plays the five agents: each text gives its calls, and the figures come from the results."""

import json
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from perdure.contracts.values import canonical_json
from perdure.core.agents.prompts import with_changed_arguments
from tests.unit.examples.filings.play import agent, agent_ids, answer, play

SPACING, REGISTER = "330.00", "Register the well Lone Star 1, API 42-999-00099"
WELL, LEASE = "Mitchell Ranch 1H", "Mitchell Ranch"
SPRING = {"lease_name": "North Pasture", "from_month": "2026-03", "to_month": "2026-05"}
ASKED = {"requested_mcf_per_day": 85, "from_day": "2026-07-01", "to_day": "2026-12-27"}
ASKED_TEXT = "Prepare the Rule 32 filing for Cottonwood at 85 mcf a day from 2026-07-01 to 2026-12-27"
OFFSETS = {"well_name": "Dry Fork 2", "radius_ft": 2000}
RULE_37: list[tuple[str, str, dict[str, Any], str]] = [
    (f"Assess spacing for {WELL}", "spacing_assessment", {"well_name": WELL}, SPACING),
    ("assess the spacing of Al's Well 7.", "spacing_assessment", {"well_name": "Al's Well 7"}, "Al's Well 7"),
    ("List the offset wells around Dry Fork 2 within 2000 ft", "offset_well_analysis", OFFSETS, "216.9"),
    ("Find offset wells for Dry Fork 2", "offset_well_analysis", {"well_name": "Dry Fork 2"}, "2,640"),
    (f"Assess spacing for the well {WELL}", "spacing_assessment", {"well_name": WELL}, SPACING),
    (f"Prepare the Rule 37 filing for {WELL}", "rule37_filing_assembly", {"well_name": WELL}, "plat"),
]
RULE_32: list[tuple[str, str, dict[str, Any], str]] = [
    (f"Calculate flaring for {LEASE}", "flaring_volume_calc", {"lease_name": LEASE}, "22,744"),
    ("Calculate flaring of North Pasture from 2026-03 to 2026-05", "flaring_volume_calc", SPRING, "30"),
    ("Analyze the gas of Cottonwood", "gas_analysis", {"lease_name": "Cottonwood"}, "1,076.9"),
    (f"Estimate emissions for {LEASE}", "emissions_estimate", {"lease_name": LEASE}, "22,744"),
    (f"Prepare the Rule 32 filing for {LEASE}", "rule32_filing_assembly", {"lease_name": LEASE}, "requested"),
    (ASKED_TEXT, "rule32_filing_assembly", {"lease_name": "Cottonwood"} | ASKED, "180"),
]


@pytest.mark.parametrize(
    ("agent_id", "asked"), [*(("rule_37", each) for each in RULE_37), *(("rule_32", each) for each in RULE_32)]
)
async def test_a_desk_selects_calls_and_reports(agent_id: str, asked: tuple[str, str, dict[str, Any], str]) -> None:
    text, tool, args, said = asked
    turn = await play(agent_id, text)
    assert (turn.loaded, turn.calls) == ([f"rrc_{agent_id.replace('_', '')}"], [(tool, args)])
    assert said in turn.answer and "SKILL_SELECT" not in turn.answer


async def test_a_loaded_skill_is_not_selected_again() -> None:
    first = await play("rule_37", "Assess spacing for Mitchell Ranch 1H")
    second = await play("rule_37", "Prepare the Rule 37 filing for Dry Fork 2", first)
    assert [name for name, _ in second.calls] == ["rule37_filing_assembly"] and second.loaded == ["rrc_rule37"]
    assert not any("SKILL_SELECT" in str(each["content"]) for each in second.messages[len(first.messages) :])


async def test_good_cause_is_argued_from_the_users_fact_alone() -> None:
    turn = await play("rule_37", "Draft the good cause for Dry Fork 2, waste: a regular location leaves oil behind")
    ((tool, args),) = turn.calls
    assert tool == "good_cause_narrative" and args["facts"][0]["statement"] == "a regular location leaves oil behind"
    assert "a regular location leaves oil behind" in turn.answer and "F1" in turn.answer


@pytest.mark.parametrize("text", [REGISTER, "register the well Lone Star 1 API number 42-999-00099."])
async def test_registering_a_well_creates_an_entity_without_a_skill(text: str) -> None:
    turn = await play("rule_37", text)
    well = {"kind": "well", "name": "Lone Star 1", "attributes": {"api_number": "42-999-00099"}}
    assert turn.calls == [("create_entity", well)]
    assert "Lone Star 1" in turn.answer and "e1" in turn.answer and turn.loaded == []


@pytest.mark.parametrize(("agent_id", "text", "tool"), [
    ("flaring_monitor", "Report flaring for Mitchell Ranch", "flaring_volume_calc"),
    ("flaring_monitor", "Estimate emissions for Twin Windmills", "emissions_estimate"),
    ("compliance_monitor", "Check compliance of Twin Windmills", "flaring_volume_calc"),
    ("compliance_monitor", "Check compliance of Dry Fork", "flaring_volume_calc"),
])  # fmt: skip
async def test_monitors_tell_without_a_skill(agent_id: str, text: str, tool: str, snapshot: SnapshotAssertion) -> None:
    turn = await play(agent_id, text)
    assert [name for name, _ in turn.calls] == [tool] and turn.loaded == [] and turn.answer == snapshot


@pytest.mark.parametrize("text", [
    "Prepare the Rule 37 filing for Mitchell Ranch 1H",
    "Assess spacing for Mitchell Ranch 1H",
    "How much did Cottonwood flare, and was the flaring allowed?",
    REGISTER,
    "Is this lease in compliance?",
])  # fmt: skip
async def test_the_general_agent_refuses_the_work_of_a_field(text: str) -> None:
    turn = await play("general", text)
    assert turn.calls == [] and turn.answer and turn.answer != agent("general")["script"]["fallback"].strip()


@pytest.mark.parametrize("agent_id", agent_ids())
async def test_every_agent_echoes_says_what_it_can_and_ends(agent_id: str) -> None:
    assert (await play(agent_id, "/echo Assess spacing for x")).answer == "Assess spacing for x"
    help_text = (await play(agent_id, "What?")).answer
    assert help_text == agent(agent_id)["script"]["fallback"].strip()
    looked_up = await play(agent_id, "Find Lone Star 1")
    assert looked_up.answer not in ("", help_text) and ("entity_resolve", {"name": "Lone Star 1"}) in looked_up.calls


@pytest.mark.parametrize("agent_id", ["rule_37", "rule_32", "compliance_monitor", "flaring_monitor"])
async def test_every_suggested_message_is_understood(agent_id: str) -> None:
    fallback = agent(agent_id)["script"]["fallback"]
    offered = fallback.split('"')[1::2]
    assert len(offered) >= 2
    for text in offered:
        turn = await play(agent_id, " ".join(text.split()))
        assert turn.calls and turn.answer != fallback.strip(), text


REFUSED = "The call to {} was rejected by rita: the plat is old\nIt has not run. Tell the user so."


@pytest.mark.parametrize(("agent_id", "text", "tool"), [
    ("rule_37", REGISTER, "create_entity"),
    ("rule_37", "Prepare the Rule 37 filing for Dry Fork 2", "rule37_filing_assembly"),
    ("rule_32", "Prepare the Rule 32 filing for Cottonwood", "rule32_filing_assembly"),
])  # fmt: skip
async def test_a_rejection_is_reported_with_its_reason_and_no_call_follows(agent_id: str, text: str, tool: str) -> None:
    """Whether the call never ran, or its result is there and a person refused it."""
    done = await play(agent_id, text)
    note = {"role": "system", "content": REFUSED.format(tool)}
    with_result = [*done.messages[:-1], note]
    for messages in ([{"role": "user", "content": text}, note], with_result):
        said, calls = await answer(agent_id, messages, [tool])
        assert calls == [] and "rita" in said and "the plat is old" in said


@pytest.mark.parametrize("notes", [[], [{"role": "system", "content": "The checkpoint pre_filing was approved."}]])
async def test_an_approved_package_is_reported_and_not_assembled_again(notes: list[dict[str, Any]]) -> None:
    done = await play("rule_37", "Prepare the Rule 37 filing for Dry Fork 2")
    said, calls = await answer("rule_37", [*done.messages[:-1], *notes], ["rule37_filing_assembly"])
    assert calls == [] and said == done.answer


async def test_a_failed_call_and_a_changed_one_are_reported_as_such() -> None:
    done = await play("rule_37", "Assess spacing for Mitchell Ranch 1H")
    *before, result, _ = done.messages
    failed = {**result, "content": '{"status": "error", "message": "the block ran too long"}'}
    said, calls = await answer("rule_37", [*before, failed], [])
    assert "the block ran too long" in said and calls == []
    changed = {**result, "content": canonical_json(with_changed_arguments({}, json.loads(result["content"])))}
    said, calls = await answer("rule_37", [*before, changed], [])
    assert said != done.answer and said.endswith(done.answer) and calls == []
