"""What the page of a turn shows: the turn, what was asked of it, its story, its calls, its approvals and its graph."""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query, Response
from markupsafe import Markup

from perdure.client import Answer, ApiError, Approval, AsyncClient, Message, Segment, Topology, Turn, TurnCall
from perdure.contracts.approvals import ANSWERED_BY_CLIENT
from perdure.core.text import cut
from perdure.pages.diagrams import Span, bars, graph, path_over
from perdure.pages.render import drawn, page, seen
from perdure.pages.request import Visitor

SHOWN = 40
"""Parts of the story, from its end, and calls."""
_KINDS = {"model": "of-model", "tool": "of-tool", "context": "of-context"}
"""How the bars of calls are told apart, beside the words."""
_CHARACTERS = 1_200
"""Of one text or value; a page stays light, whatever a tool has answered."""
_PART, _PARTS = 200, 5
"""How far a conversation is read for what this turn was asked."""
_APPROVALS = 100


@dataclass(frozen=True, slots=True)
class Told:
    """Everything about a turn at one moment."""

    turn: Turn
    asked: Sequence[Message]
    """What its user said; empty where the conversation is gone or too long."""
    story: Sequence[Segment]
    calls: Sequence[TurnCall]
    approvals: Sequence[Approval]
    topology: Topology | None
    """None where the deployment has it no more."""

    @property
    def mark(self) -> str:
        """Another one where anything has changed."""
        whole: list[Answer] = [self.turn, *self.asked, *self.story, *self.calls, *self.approvals]
        return hashlib.sha256("\n".join(each.model_dump_json() for each in whole).encode()).hexdigest()[:16]

    @property
    def picture(self) -> Markup | None:
        """Its graph with the path taken."""
        if self.topology is None:
            return None
        manifest = self.topology.model_dump()
        rests = self.turn.status == "completed" or self.turn.is_paused
        return graph(manifest, path_over(manifest["edges"], self.turn.nodes, rests=rests))

    @property
    def purposes(self) -> dict[str, str]:
        """Of the nodes, in words."""
        nodes = self.topology.model_dump()["nodes"] if self.topology else []
        return {str(node["id"]): str(node["purpose"]) for node in nodes}

    @property
    def timeline(self) -> list[tuple[TurnCall, Markup]]:
        """Its last calls, each with its bar; what runs yet runs until now, or until the turn has ended."""
        shown = self.calls[-SHOWN:]
        until = self.turn.ended_at or datetime.now(UTC)
        spans = [Span(call.started_at, call.settled_at or until) if call.started_at else None for call in shown]
        return [
            (call, bar.drawn(_KINDS.get(call.kind, "")) if bar else Markup(""))
            for call, bar in zip(shown, bars(spans), strict=True)
        ]

    @property
    def waits_for_reviewers(self) -> Sequence[str]:
        """The approvals that it waits for."""
        waiting = self.turn.waiting_for
        known = {each.id for each in self.approvals}
        return [each for each in waiting.ids if each in known] if waiting else []

    @property
    def waits_for_its_user(self) -> bool:
        """Whether it is the user's own answer that is missing."""
        return self.turn.waiting_for is not None and self.turn.waiting_for.kind in ANSWERED_BY_CLIENT


async def told_of(api: AsyncClient, turn_id: str) -> Told:
    """The turn as it is now.

    Raises: ApiError 404.
    """
    turn = await api.turns.get(turn_id)
    asked, story, calls, approvals, topology = await asyncio.gather(
        _asked(api, turn),
        api.turns.segments(turn_id),
        api.turns.calls(turn_id),
        api.approvals.list(turn=turn_id, brief=True, limit=_APPROVALS),
        _topology(api, turn.topology),
    )
    return Told(turn, asked, story.items, calls.items, approvals.items, topology)


def value(of: object) -> Markup:
    """A text or a value, its beginning where it is long."""
    text = of if isinstance(of, str) else json.dumps(of, indent=2, ensure_ascii=False)
    if isinstance(of, str) or len(text) > _CHARACTERS:
        return seen(cut(text, _CHARACTERS))
    return drawn(of)


async def _asked(api: AsyncClient, turn: Turn) -> list[Message]:
    cursor: str | None = None
    found: list[Message] = []
    for _ in range(_PARTS):
        try:
            part = await api.conversations.messages(turn.conversation_id, limit=_PART, cursor=cursor)
        except ApiError as error:
            if error.status == 404:  # the user has deleted the conversation; its turns stay
                return []
            raise
        found += [each for each in part.items if each.turn_id == turn.turn_id and each.role == "user"]
        cursor = part.next
        if cursor is None:
            break
    return found


async def _topology(api: AsyncClient, name: str) -> Topology | None:
    try:
        return await api.topologies.get(name)
    except ApiError as error:
        if error.status == 404:
            return None
        raise


# --- The page of one turn.

router = APIRouter()


@router.get("/turns/{turn_id}")
async def turn(visit: Visitor, turn_id: str, mark: Annotated[str, Query(max_length=64)] = "") -> Response:
    """The page; for its script the part that changes, and 204 where nothing has since `mark`."""
    told = await told_of(visit.api, turn_id)
    if visit.is_live and mark == told.mark:
        return Response(status_code=204)
    template = "turn_now.html" if visit.is_live else "turn.html"
    return page(visit, template, told=told, turn=told.turn, value=value, shown=SHOWN)
