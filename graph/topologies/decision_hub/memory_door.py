"""The one way to memory (S3-21): no leave, no operation; no trouble behind it ever comes out as more than a status."""

from dataclasses import dataclass

from contracts.facts import Fact, FactsAnswer, FactsAsk, FactScope, FactStatus
from graph.ports import Ports


@dataclass(frozen=True, slots=True)
class MemoryDoor:
    """Facts of one scope, for one visit of a node."""

    ports: Ports
    scope: FactScope
    authorized: bool
    """Whether the turn may, and the deciding node has just said so."""

    async def read(self, about: str = "") -> FactsAnswer:
        """What is known; one operation, never tried again."""
        return await self._through(FactsAsk(scope=self.scope, authorized=self.authorized, about=about))

    async def write(self, facts: tuple[Fact, ...]) -> FactsAnswer:
        """Keep these; nothing to keep is a success without a call."""
        if self.authorized and not facts:
            return FactsAnswer(status=FactStatus.SUCCESS)
        return await self._through(FactsAsk(scope=self.scope, authorized=self.authorized, write=True, facts=facts))

    async def _through(self, ask: FactsAsk) -> FactsAnswer:
        if not ask.authorized:
            return FactsAnswer(status=FactStatus.UNAUTHORIZED)
        return await self.ports.memory.facts(ask)
