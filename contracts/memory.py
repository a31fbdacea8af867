"""Loading what a fresh turn needs, in one activity."""

from pydantic import Field, JsonValue

from contracts.agents import TurnPlan
from contracts.errors import Problem
from contracts.events import PendingEvent
from contracts.frozen import Tolerant
from contracts.messages import MessageRef
from contracts.people import RequestRef
from contracts.pipeline import ContextMemory
from contracts.skills import is_empty
from contracts.turns import TurnAddress, Usage


class LoadAsk(Tolerant):
    """The input of `memory.load`."""

    address: TurnAddress
    agent_id: str
    agent_version: str
    events: tuple[PendingEvent, ...] = ()


class TurnContext(Tolerant):
    """What a fresh turn starts from."""

    plan: TurnPlan | None = None
    user_message: MessageRef | None = None
    user_name: str = ""
    user_role: str = ""
    metadata: dict[str, JsonValue] = {}
    """The turn's request metadata."""
    working: dict[str, JsonValue] = {}
    """Working-memory fields that mirror state (S0-16)."""
    injected_fields: int = 0
    """How many working-memory fields the memory message shows; its text stays in Postgres, fixed for the turn."""
    episodes: int = Field(default=0, exclude_if=is_empty)
    """How many past episodes it shows."""
    injected: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """Skills that earlier turns of the conversation have injected (S0-31)."""
    pending: tuple[RequestRef, ...] = ()
    """Requests of this turn that were opened before: a cold resume finds its gate here (S0-27)."""
    pending_round: MessageRef | None = None
    """The assistant message whose calls those requests gate."""
    earlier: tuple[MessageRef, ...] = ()
    """The rounds before that one which have run, each with its answers."""
    restored: dict[str, JsonValue] = Field(default={}, exclude_if=is_empty)
    """State as the pause's snapshot kept it: of a checkpoint, and of a gate in a turn that had loaded skills."""
    used: Usage = Usage()
    """What the turn has used so far; counts where a gate is found, for the calls before it are not asked again."""
    events_written: int = 0
    """The number of the last event that the turn's nodes have left behind; a turn started again goes on from there."""
    context: ContextMemory | None = Field(default=None, exclude_if=is_empty)
    """For an agent that puts a context together."""
    problem: Problem | None = None
