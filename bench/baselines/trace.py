"""The durable events of the reference turn, with the same kinds, number and sizes as Perdure's.

The node events before and after a step are written together with the next step, as Perdure does it: an event needs no
separate transaction.
"""

from collections.abc import Sequence
from typing import Final

from pydantic import JsonValue

from perdure.contracts import events
from perdure.contracts.turns import Usage
from perdure.store.events.event_log import NewEvent

_LAST_NODES: Final = ("skill_select_node", "approval_node", "synthesis_llm_call", "output_format")


def loaded(fields: Sequence[str]) -> list[NewEvent]:
    """Returns the events of the memory read."""
    return [_start("system_prompt_node"), NewEvent(events.MEMORY_CONTEXT_LOADED, {"fields": [*fields]})]


def before_model(step: int, call_id: str, tokens: int) -> list[NewEvent]:
    """Returns the events before model call number `step`; `tokens` is the turn's use so far."""
    began = NewEvent(events.GENERATION_START, {"model": "scripted", "attempt": 1}, call_id)
    if step > 1:
        return [_end("tool_node", tokens), _start("initial_llm_call"), began]
    return [
        _end("system_prompt_node", tokens),
        *_whole("memory_node", tokens),
        *_whole("resume_guard", tokens),
        _start("initial_llm_call"),
        began,
    ]


def after_model(call_id: str, text: str, usage: Usage, tools: Sequence[str], seconds: float) -> list[NewEvent]:
    """Returns the events after the model's answer."""
    used: dict[str, JsonValue] = {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_tokens": usage.cached_tokens,
    }
    settled: dict[str, JsonValue] = {
        "attempt": 1,
        "characters": len(text),
        "partial": False,
        "tool_calls": [*tools],
    }
    return [
        NewEvent(events.TTFT, {"seconds": round(seconds, 3)}, call_id),
        NewEvent(events.TOKEN_USAGE, used, call_id),
        NewEvent(events.GENERATION_COMPLETE, settled, call_id),
    ]


def before_tool(call_id: str, tool: str, *, first: bool, said: str, calls: Sequence[tuple[str, str]]) -> list[NewEvent]:
    """Returns the events before a tool runs; the first of a round includes the start of the round."""
    runs = NewEvent(events.TOOL_EXECUTING, {"tool": tool, "attempt": 1}, call_id)
    if not first:
        return [runs]
    pending: list[JsonValue] = [
        {"call_id": call_id, "tool": name, "requires_approval": False} for call_id, name in calls
    ]
    return [
        _end("initial_llm_call", 0, said),
        _start("tool_node"),
        NewEvent(events.TOOLS_PENDING, {"calls": pending}),
        runs,
    ]


def after_tool(call_id: str, tool: str, result: str, message_id: str) -> list[NewEvent]:
    """Returns the events after a tool's result."""
    return [NewEvent(events.TOOL_RESULT, {"tool": tool, "result": result, "message_id": message_id}, call_id)]


def finished(turn_id: str, tokens: int, cost_microusd: int, duration_ms: int, said: str, title: str) -> list[NewEvent]:
    """Returns the events of the turn's end, including the title of a conversation that had none."""
    done: dict[str, JsonValue] = {
        "execution_id": turn_id,
        "status": "completed",
        "tokens_used": tokens,
        "cost_usd": cost_microusd / 1e6,
        "duration_ms": duration_ms,
    }
    return [
        _end("initial_llm_call", tokens, said),
        *(event for node in _LAST_NODES for event in _whole(node, tokens)),
        *([NewEvent(events.TITLE_GENERATED, {"title": title})] if title else []),
        NewEvent(events.COMPLETED, {"status": "completed"}),
        NewEvent(events.DONE, done),
    ]


def _start(node: str) -> NewEvent:
    return NewEvent(events.NODE_START, {"node": node})


def _end(node: str, tokens: int, said: str = "") -> NewEvent:
    data: dict[str, JsonValue] = {"status": "running", "tokens_used": tokens}
    if said:
        data["message"] = {"role": "assistant", "content": said}
    return NewEvent(events.NODE_END, {"node": node, "data": data})


def _whole(node: str, tokens: int) -> list[NewEvent]:
    return [_start(node), _end(node, tokens)]
