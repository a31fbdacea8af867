"""What activities are made with; worker.py puts it together."""

from dataclasses import dataclass, field

from activities.models import Models
from activities.toolbox.shelf import Toolbox
from relay.deliver import Doorbell
from store.content import AgentShelf
from store.database import Database
from store.live import LiveTokens


@dataclass(frozen=True, slots=True)
class Deps:
    """The clients of one worker process."""

    db: Database
    live: LiveTokens
    toolbox: Toolbox
    models: Models
    doorbell: Doorbell
    shelf: AgentShelf = field(default_factory=AgentShelf)
