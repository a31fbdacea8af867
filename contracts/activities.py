"""The typed activity references: the only way by which a workflow reaches an activity.

A reference says the public name, the kind (and so the queue), the two types, the time-outs and the retry class.
tests/repo checks that each has exactly one implementation.
"""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Generic, TypeVar

from contracts.approvals import OpenAsk, Opened, Verdicts, VerdictsAsk
from contracts.facts import FactsAnswer, FactsCall
from contracts.memory import LoadAsk, TurnContext
from contracts.model import ModelCall, ModelReply
from contracts.pipeline import AssembleCall, Assembled
from contracts.previews import PreviewAsk, PreviewKept
from contracts.tools import ToolCall, ToolOutcome
from contracts.turns import FinishAsk, Finished, Kind, StopAsk, StopRead

In = TypeVar("In")
Out = TypeVar("Out")


class RetryClass(StrEnum):
    """How an activity is retried; policy/retries.py has the numbers."""

    UNTIL_BACK = "until_back"
    """Until Postgres is back: opening, reading verdicts and stops, finishing."""
    PROVIDER = "provider"
    """Provider errors are capped; a 429 sets the next delay."""
    TOOL = "tool"
    """The effect class decides what a repeated attempt does."""


@dataclass(frozen=True, slots=True)
class ActivityRef(Generic[In, Out]):
    """An activity by name and type."""

    name: str
    kind: Kind
    input: type[In]
    output: type[Out]
    start_to_close: timedelta
    schedule_to_close: timedelta | None
    retry: RetryClass
    brief: bool = False
    """One short transaction that may be repeated: it runs inside the workflow task where the queue of the turns serves
    its kind too (ADR 7)."""


HEARTBEAT_TIMEOUT = timedelta(seconds=5)
"""A killed worker is noticed after this long; every activity beats every second or less (design section 2)."""

MEMORY_LOAD = ActivityRef(
    "memory.load", Kind.MEMORY, LoadAsk, TurnContext, timedelta(seconds=20), None, RetryClass.UNTIL_BACK, brief=True
)
MEMORY_FACTS = ActivityRef(
    "memory.facts",
    Kind.MEMORY,
    FactsCall,
    FactsAnswer,
    timedelta(seconds=10),
    timedelta(seconds=20),
    RetryClass.UNTIL_BACK,
    brief=True,
)
MODEL_COMPLETE = ActivityRef(
    "model.complete", Kind.LLM, ModelCall, ModelReply, timedelta(seconds=600), None, RetryClass.PROVIDER
)
TOOLS_RUN = ActivityRef("tools.run", Kind.TOOLS, ToolCall, ToolOutcome, timedelta(hours=2), None, RetryClass.TOOL)
TOOLS_ASSEMBLE = ActivityRef(
    "tools.assemble", Kind.TOOLS, AssembleCall, Assembled, timedelta(hours=1), None, RetryClass.TOOL
)
TOOLS_PREVIEW = ActivityRef(
    "tools.preview", Kind.TOOLS, PreviewAsk, PreviewKept, timedelta(seconds=10), timedelta(seconds=11), RetryClass.TOOL
)
APPROVALS_OPEN = ActivityRef(
    "approvals.open", Kind.APPROVALS, OpenAsk, Opened, timedelta(seconds=20), None, RetryClass.UNTIL_BACK
)
APPROVALS_READ = ActivityRef(
    "approvals.read",
    Kind.APPROVALS,
    VerdictsAsk,
    Verdicts,
    timedelta(seconds=20),
    timedelta(seconds=120),
    RetryClass.UNTIL_BACK,
    brief=True,
)
TURNS_READ = ActivityRef(
    "turns.read", Kind.TURNS, StopAsk, StopRead, timedelta(seconds=20), None, RetryClass.UNTIL_BACK, brief=True
)
TURNS_FINISH = ActivityRef(
    "turns.finish", Kind.TURNS, FinishAsk, Finished, timedelta(seconds=20), None, RetryClass.UNTIL_BACK, brief=True
)

ALL = (
    *(MEMORY_LOAD, MEMORY_FACTS, MODEL_COMPLETE, TOOLS_RUN, TOOLS_ASSEMBLE, TOOLS_PREVIEW),
    *(APPROVALS_OPEN, APPROVALS_READ, TURNS_READ, TURNS_FINISH),
)
