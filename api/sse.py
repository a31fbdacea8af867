"""Frames as bytes of `text/event-stream`."""

import json
from collections.abc import Mapping

from fastapi.sse import format_sse_event

from contracts.events import WORKFLOW_COMPLETE
from policy.reader import Frame


def encoded(frame: Frame) -> bytes:
    """An event as the format has it."""
    return format_sse_event(data_str=_json(frame.data), event=frame.kind, id=frame.id)


def ending(done: Frame) -> bytes:
    """The line after the last event. It has no id: coming back with the last event's own is answered 204."""
    data = {"turn_id": done.turn_id, "status": done.data["status"]}
    return format_sse_event(data_str=_json(data), event=WORKFLOW_COMPLETE)


def _json(data: Mapping[str, object]) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))
