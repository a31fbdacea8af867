"""The page of a turn: the turn, its message, its segments, its calls, its approvals and its graph."""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query, Response
from markupsafe import Markup

from perdure.client import ApiError, AsyncClient
from perdure.contracts.approvals import ANSWERED_BY_CLIENT
from perdure.core.text import truncate
from perdure.pages.diagrams import Span, draw_bars, draw_graph, turn_path
from perdure.pages.render import json_markup, page, visible
from perdure.pages.request import SignedInVisit
from perdure.schemas.agents import Topology
from perdure.schemas.approvals import Approval
from perdure.schemas.base import Answer
from perdure.schemas.turns import Message, Segment, Turn, TurnCall

MAX_PARTS = 40
"""Maximum segments, from the end, and calls."""
_BAR_CLASSES = {"model": "of-model", "tool": "of-tool", "context": "of-context"}
"""CSS classes of the bars by kind of call. The kind is also shown as text."""
_VALUE_CHARACTERS = 1_200
"""Characters of one text or value, so that the page stays small whatever a tool returns."""
_MESSAGES_PER_REQUEST, _MAX_REQUESTS = 200, 5
"""Messages per request, and maximum requests, to find this turn's message in its conversation."""
_MAX_APPROVALS = 100


@dataclass(frozen=True, slots=True)
class TurnData:
    """All data of a turn at one time."""

    turn: Turn
    asked: Sequence[Message]
    """The user's messages; empty if the conversation is deleted or too long."""
    segments: Sequence[Segment]
    calls: Sequence[TurnCall]
    approvals: Sequence[Approval]
    topology: Topology | None
    """The topology; None if the deployment no longer has it."""

    @property
    def mark(self) -> str:
        """A hash that changes with any change of the turn."""
        answers: list[Answer] = [self.turn, *self.asked, *self.segments, *self.calls, *self.approvals]
        return hashlib.sha256("\n".join(each.model_dump_json() for each in answers).encode()).hexdigest()[:16]

    @property
    def picture(self) -> Markup | None:
        """The graph with the path that the turn took."""
        if self.topology is None:
            return None
        manifest = self.topology.model_dump()
        has_run_to_end = self.turn.status == "completed" or self.turn.is_paused
        return draw_graph(manifest, turn_path(manifest["edges"], self.turn.nodes, has_run_to_end=has_run_to_end))

    @property
    def purposes(self) -> dict[str, str]:
        """Texts about the nodes of the topology, by node id."""
        nodes = self.topology.model_dump()["nodes"] if self.topology else []
        return {str(node["id"]): str(node["purpose"]) for node in nodes}

    @property
    def timeline(self) -> list[tuple[TurnCall, Markup]]:
        """The last calls, each with its bar. A running call extends to the current time, or to the end of the turn."""
        shown = self.calls[-MAX_PARTS:]
        until = self.turn.ended_at or datetime.now(UTC)
        spans = [Span(call.started_at, call.settled_at or until) if call.started_at else None for call in shown]
        return [
            (call, bar.to_svg(_BAR_CLASSES.get(call.kind, "")) if bar else Markup(""))
            for call, bar in zip(shown, draw_bars(spans), strict=True)
        ]

    @property
    def waits_for_reviewers(self) -> Sequence[str]:
        """The ids of the approvals that the turn waits for."""
        waiting = self.turn.waiting_for
        approval_ids = {each.id for each in self.approvals}
        return [each for each in waiting.ids if each in approval_ids] if waiting else []

    @property
    def waits_for_its_user(self) -> bool:
        """True if the turn waits for an answer of its user."""
        return self.turn.waiting_for is not None and self.turn.waiting_for.kind in ANSWERED_BY_CLIENT


async def turn_data(api: AsyncClient, turn_id: str) -> TurnData:
    """Returns the current data of a turn.

    Raises: ApiError 404 if the turn does not exist.
    """
    turn = await api.turns.get(turn_id)
    messages, segments, calls, approvals, topology = await asyncio.gather(
        _user_messages(api, turn),
        api.turns.segments(turn_id),
        api.turns.calls(turn_id),
        api.approvals.list(turn=turn_id, brief=True, limit=_MAX_APPROVALS),
        _find_topology(api, turn.topology),
    )
    return TurnData(turn, messages, segments.items, calls.items, approvals.items, topology)


def value_markup(value: object) -> Markup:
    """Returns a text or a value for display, cut if it is long."""
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    if isinstance(value, str) or len(text) > _VALUE_CHARACTERS:
        return visible(truncate(text, _VALUE_CHARACTERS))
    return json_markup(value)


async def _user_messages(api: AsyncClient, turn: Turn) -> list[Message]:
    cursor: str | None = None
    messages: list[Message] = []
    for _ in range(_MAX_REQUESTS):
        try:
            page = await api.conversations.messages(turn.conversation_id, limit=_MESSAGES_PER_REQUEST, cursor=cursor)
        except ApiError as error:
            if error.status == 404:  # the user has deleted the conversation; its turns remain
                return []
            raise
        messages += [each for each in page.items if each.turn_id == turn.turn_id and each.role == "user"]
        cursor = page.next
        if cursor is None:
            break
    return messages


async def _find_topology(api: AsyncClient, name: str) -> Topology | None:
    try:
        return await api.topologies.get(name)
    except ApiError as error:
        if error.status == 404:
            return None
        raise


router = APIRouter()


@router.get("/turns/{turn_id}")
async def turn(visit: SignedInVisit, turn_id: str, mark: Annotated[str, Query(max_length=64)] = "") -> Response:
    """Shows the page of a turn. For its script, returns the part that changes, or 204 if it equals `mark`."""
    data = await turn_data(visit.api, turn_id)
    if visit.is_live and mark == data.mark:
        return Response(status_code=204)
    template = "turn_now.html" if visit.is_live else "turn.html"
    return page(visit, template, data=data, turn=data.turn, value=value_markup, shown=MAX_PARTS)
