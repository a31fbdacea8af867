"""A turn of an agent of the filings app, played without an engine: its script, its tools, and what a skill brings."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from tests.unit.examples.filings.blocks import FILINGS, blocks, run
from tests.unit.examples.scripted_answers import scripted_answer

AGENTS = FILINGS / "agents"
BARE = ("flaring_monitor", "compliance_monitor")
"""Their tools answer without a wrapper."""


@cache
def _agent(agent_id: str) -> str:
    return (AGENTS / f"{agent_id}.yaml").read_text()


def agent(agent_id: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(_agent(agent_id))
    read["script"] = yaml.safe_load((AGENTS / read["script"]).read_text())
    return read


def agent_ids() -> list[str]:
    return sorted(path.stem for path in Path(AGENTS).glob("*.yaml"))


@dataclass(slots=True)
class Turn:
    messages: list[dict[str, Any]] = field(default_factory=list)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    answer: str = ""


async def answer(agent_id: str, messages: Sequence[dict[str, Any]], offered: Sequence[str]) -> tuple[str, list[Any]]:
    return await scripted_answer(agent(agent_id)["script"], messages, offered)


async def play(agent_id: str, text: str, before: Turn | None = None) -> Turn:
    """The turn that `text` starts, to its end; after `before`, in the same conversation."""
    turn = Turn(list(before.messages), loaded=list(before.loaded)) if before else Turn()
    turn.messages.append({"role": "user", "content": text})
    definition = agent(agent_id)
    for _ in range(6):
        shown = [name for name, block in blocks().items() if block.skill in turn.loaded]
        offered = ["entity_resolve", "context_assemble", *definition.get("tools", ()), *shown]
        turn.answer, calls = await answer(agent_id, turn.messages, offered)
        message: dict[str, Any] = {"role": "assistant", "content": turn.answer}
        turn.messages.append(message)
        if calls:
            assert {name for name, _ in calls} <= set(offered)
            message["tool_calls"] = [
                {"id": f"c{len(turn.calls)}", "type": "function", "function": {"name": name}} for name, _ in calls
            ]
            for name, args in calls:
                output = _output(agent_id, name, args)
                call_id = f"c{len(turn.calls)}"
                turn.messages.append({"role": "tool", "tool_call_id": call_id, "content": json.dumps(output)})
                turn.calls.append((name, args))
            continue
        selected = [each for each in re.findall(r"SKILL_SELECT:(\w+)", turn.answer) if each not in turn.loaded]
        if not selected:
            return turn
        assert set(selected) <= set(definition["skills"])
        turn.loaded += selected
        for each in selected:
            body = (FILINGS / "skills" / each / "SKILL.md").read_text().split("---\n", 2)[2]
            turn.messages.append({"role": "system", "content": f"=== Skill Activated: {each} ===\n{body}"})
    raise AssertionError(f"{agent_id} does not come to an end: {turn.calls}")


def _output(agent_id: str, name: str, args: dict[str, Any]) -> dict[str, Any]:
    if name == "create_entity":
        assert sorted(args) == ["attributes", "kind", "name"]
        return {"status": "created", "entity": {"id": "e1", **args}}
    if name == "entity_resolve":
        return {"status": "not_found", "candidates": []}
    Draft202012Validator(blocks()[name].card["input"]).validate(args)
    result = run(name, args)
    return result if agent_id in BARE else {"status": "ok", "message": "", "result": result}
