"""Which provider stands behind an agent's model, and its parameters with credentials resolved.

LiteLLM takes seconds and 200 MB to import, so it is imported by the worker that first meets a real model, in a
thread: the event loop must go on beating.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from pydantic import JsonValue

from activities.clients.provider import Provider
from activities.clients.script import read_script
from activities.clients.scripted import ScriptedProvider
from contracts.agents import PublishedAgent

SCRIPTED = "scripted"
SecretOf = Callable[[str], str | None]


class Models:
    """The providers of one process."""

    def __init__(self, secret_of: SecretOf) -> None:
        self._secret_of = secret_of
        self._litellm: Provider | None = None
        self._importing = asyncio.Lock()
        self._scripted: dict[str, Provider] = {}

    async def provider(self, agent: PublishedAgent) -> Provider:
        """The provider of this agent's model; a script is read once a version.

        Raises: CallerError `bad_script`.
        """
        if agent.definition.model == SCRIPTED:
            if agent.version not in self._scripted:
                self._scripted[agent.version] = ScriptedProvider(read_script(agent.definition.script))
            return self._scripted[agent.version]
        async with self._importing:
            if self._litellm is None:
                self._litellm = await asyncio.to_thread(_import_litellm)
        return self._litellm

    async def preload(self, agents: Sequence[PublishedAgent]) -> None:
        """Import what these agents' models need, before the worker serves: a first call must not wait for it."""
        for agent in agents:
            if agent.definition.model != SCRIPTED:
                await self.provider(agent)
                return

    def params(self, agent: PublishedAgent) -> Mapping[str, JsonValue]:
        """The model's parameters; `api_key_secret` names a credential, which becomes `api_key` here."""
        params = dict(agent.definition.model_params)
        name = params.pop("api_key_secret", None)
        if isinstance(name, str) and (key := self._secret_of(name)):
            params["api_key"] = key
        return params


def _import_litellm() -> Provider:
    from activities.clients.litellm_provider import LiteLLMProvider

    return LiteLLMProvider()
