"""What activities are made with; worker.py puts it together."""

from dataclasses import dataclass, field

from activities.models import Models
from activities.sandbox import ClosedSandbox, Sandbox
from activities.stops import Stops
from activities.toolbox.shelf import Toolbox
from contracts.documents import DEFAULT_LIMITS, MemoryLimits
from embedding.embedder import Embedder
from relay.deliver import Doorbell
from store.app_tables import TableShelf
from store.content import AgentShelf
from store.database import Database
from store.live import LiveTokens
from tracing.turn_traces import TurnTraces


@dataclass(frozen=True, slots=True)
class Deps:
    """The clients of one worker process."""

    db: Database
    live: LiveTokens
    toolbox: Toolbox
    models: Models
    doorbell: Doorbell
    shelf: AgentShelf = field(default_factory=AgentShelf)
    sandbox: Sandbox = field(default_factory=lambda: ClosedSandbox("this process was given no sandbox"))
    tables: TableShelf = field(default_factory=TableShelf)
    stops: Stops = field(default_factory=Stops)
    memory: MemoryLimits = DEFAULT_LIMITS
    traces: TurnTraces | None = None
    """None where turns are not traced."""
    embedder: Embedder | None = None
    """None where episodes are searched by words."""
    keeps_facts: bool = True
    """False where the operator keeps none: graphs are then told that memory is unavailable."""
