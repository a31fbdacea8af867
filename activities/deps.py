"""What activities are made with; worker.py puts it together."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue
from store.live import LiveTokens

from activities.clients.provider import Provider
from activities.toolbox.shelf import Toolbox
from contracts.agents import AgentDefinition
from relay.deliver import Doorbell
from store.content import AgentShelf
from store.database import Database

ProviderOf = Callable[[AgentDefinition], Provider]
ParamsOf = Callable[[AgentDefinition], Mapping[str, JsonValue]]
"""A model's parameters with its credentials resolved, which only the llm worker does."""


@dataclass(frozen=True, slots=True)
class Deps:
    """The clients of one worker process."""

    db: Database
    live: LiveTokens
    toolbox: Toolbox
    provider_of: ProviderOf
    params_of: ParamsOf
    doorbell: Doorbell
    shelf: AgentShelf = field(default_factory=AgentShelf)
