"""What a conversation's page shows: its turns as its person reads them, with what each waits for."""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from contracts.people import ANSWERED_BY_CLIENT
from perdure.client import ApiError, Approval, AsyncClient, File, Question, ToldTurn
from policy.printable import cut
from reviewer.approval_page import is_long, reasons_for
from reviewer.argument_fields import Field, Shape, fields_of
from reviewer.forms import Form
from reviewer.seen import seen

SHOWN = 10
"""Turns of a page."""
CHARACTERS = 60_000
"""Of all texts of a page; what is beyond must be opened."""
_FEWEST = 1_000
"""Of each text, however many there are."""
_COLOUR = re.compile(r"#[0-9a-fA-F]{6}")
SUGGESTED = 3
"""Of what a turn proposes to say next."""
PICTURES = ("image/svg+xml", "image/png")
"""What is shown in place, the better one first."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question of the turn's, with what was typed into its form and was not taken."""

    question: Question
    form: Form | None = None
    faults: Mapping[str, str] = field(default_factory=dict)
    why: str = ""

    @property
    def words(self) -> str:
        """What is asked."""
        return words_of(self.question.asked)

    @property
    def fields(self) -> list[Field]:
        """Its form, made from the schema of the answers that count."""
        return fields_of({}, self.question.answer_schema, self.form, self.faults)

    @property
    def is_text(self) -> bool:
        """Whether the answer is one text, which needs no more words."""
        return bool(self.only) and self.fields[0].shape in (Shape.LINE, Shape.LINES)

    @property
    def options(self) -> list[str]:
        """Ready answers; each is a value of the only field."""
        options = self.question.asked.get("options")
        return [each for each in options if isinstance(each, str)] if isinstance(options, list) and self.only else []

    @property
    def only(self) -> str:
        """The only field of an answer, where there is one."""
        names = [each.name for each in fields_of({}, self.question.answer_schema)]
        return names[0] if len(names) == 1 else ""


@dataclass(frozen=True, slots=True)
class Shown:
    """One turn on the page."""

    turn: ToldTurn
    approvals: Sequence[Approval] = ()
    """Those that wait."""
    asked: Sequence[Asked] = ()
    most: int | None = None
    """Characters of each of its texts; None is all of them."""

    def text(self, of: str) -> object:
        """A text of it, for the page."""
        return seen(of if self.most is None else cut(of, self.most))

    @property
    def apart(self) -> str:
        """The answer, where none of the parts has said it."""
        answer = self.turn.answer or ""
        return "" if any(_same(each.text, answer) for each in self.turn.segments if each.kind == "text") else answer

    @property
    def works(self) -> str:
        """What an open turn does, in words; empty where it has ended."""
        if self.turn.has_ended:
            return ""
        if self.turn.stop_requested_at is not None:
            return "Stopping."
        if self.turn.status == "queued":
            return "It waits for the turn before it."
        if self.turn.status == "awaiting_answer":
            return "It waits for an answer."
        return "It waits for a person." if self.turn.is_paused else "Working on it."

    @property
    def pictures(self) -> list[File]:
        """One of each picture that it made."""
        best: dict[str, File] = {}
        for kind in PICTURES:
            for file in self.turn.files:
                if file.media_type == kind:
                    best.setdefault(file.name.rpartition(".")[0], file)
        return list(best.values())

    @property
    def suggestions(self) -> list[str]:
        """What may be said next, as its output proposes it: `{"suggestions": [{"kind": "text", "text": ...}]}`."""
        proposed = (self.turn.output or {}).get("suggestions")
        texts = [each.get("text") for each in proposed if isinstance(each, dict)] if isinstance(proposed, list) else []
        return [each for each in texts if isinstance(each, str) and each.strip()][:SUGGESTED]

    @property
    def palettes(self) -> list[list[str]]:
        """Colours that its output proposes: `{"suggestions": [{"kind": "custom_palette", "colors": ["#4c78a8"]}]}`."""
        proposed = (self.turn.output or {}).get("suggestions")
        lists = (
            [each.get("colors") for each in proposed if isinstance(each, dict)] if isinstance(proposed, list) else []
        )
        return [[each for each in colours if _is_colour(each)] for colours in lists if isinstance(colours, list)]

    @property
    def settles(self) -> int:
        """How many calls must be settled of which it is not known whether they took effect."""
        waiting = self.turn.waiting_for
        if waiting is None or waiting.kind in ANSWERED_BY_CLIENT:
            return 0
        return len(set(waiting.ids) - {each.id for each in self.approvals})

    def reasons(self, approval: Approval) -> list[str]:
        """The ready reasons for a rejection."""
        return reasons_for(approval)

    def opened(self, approval: Approval) -> bool:
        """Whether all that is decided on stands on the page."""
        return not is_long(approval) and approval.kind != "limit"


async def shown(
    api: AsyncClient, turns: Sequence[ToldTurn], *, refused: Asked | None = None, whole: bool = False
) -> list[Shown]:
    """These turns, oldest first, as they are now; `refused`: an answer that was not taken."""
    most = {} if whole else allotted(turns)
    found = await asyncio.gather(*(_shown(api, turn, most.get(turn.turn_id), refused) for turn in turns))
    return list(reversed(found))


def words_of(said: Mapping[str, Any]) -> str:
    """A question or an answer in words: its question, or its only text, else all of it as JSON."""
    texts = [each for each in said.values() if isinstance(each, str)]
    if isinstance(said.get("question"), str):
        return str(said["question"])
    return texts[0] if len(texts) == len(said) == 1 else json.dumps(said, ensure_ascii=False, indent=2)


def allotted(turns: Sequence[ToldTurn]) -> dict[str, int]:
    """By turn, how much of each text is shown where not all of it is. The newest come first and are shown whole."""
    left, most = CHARACTERS, dict[str, int]()
    for turn in turns:
        lengths = [len(text) for text in _texts(turn)]
        if sum(lengths) > left:
            most[turn.turn_id] = max(_FEWEST, left // len(lengths))
            lengths = [min(length, most[turn.turn_id]) for length in lengths]
        left = max(0, left - sum(lengths))
    return most


def _texts(turn: ToldTurn) -> list[str]:
    return [*(each.content for each in turn.said), *(each.text for each in turn.segments), turn.answer or ""]


async def _shown(api: AsyncClient, turn: ToldTurn, most: int | None, refused: Asked | None) -> Shown:
    waiting = turn.waiting_for
    if waiting is None:
        return Shown(turn, most=most)
    if waiting.kind in ANSWERED_BY_CLIENT:
        questions = await asyncio.gather(*(api.turns.question(turn.turn_id, each) for each in waiting.ids))
        return Shown(turn, asked=[_asked(each, refused) for each in questions if each.status == "pending"], most=most)
    found = await asyncio.gather(*(_approval(api, each) for each in waiting.ids))
    return Shown(turn, [each for each in found if each is not None], most=most)


def _asked(question: Question, refused: Asked | None) -> Asked:
    return refused if refused is not None and refused.question.id == question.id else Asked(question)


async def _approval(api: AsyncClient, approval_id: str) -> Approval | None:
    try:
        return await api.approvals.get(approval_id)
    except ApiError as error:
        if error.status == 404:  # an effect to be settled has no approval of this id
            return None
        raise


def _is_colour(given: object) -> bool:
    return isinstance(given, str) and _COLOUR.fullmatch(given) is not None


def _same(said: str, answer: str) -> bool:
    return said.strip() == answer.strip()
