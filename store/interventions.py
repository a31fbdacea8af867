"""A message with words of danger whose turn cannot begin at once: it is answered all the same, with its agent's fixed
text, in a turn of its own that ends as it begins. What is under way goes on as if nothing had been said, and so does
what waits for a person (S1-13, O-16; ADR 25).
"""

import asyncio

from pydantic import JsonValue

from contracts.agents import PublishedAgent
from contracts.events import STAGE
from contracts.turns import FinishAsk, TurnAddress, TurnStatus
from policy.danger import Words, danger_in
from store.database import Connection
from store.finish import finish
from store.journal import NewEvent, write

_LONG_CHARACTERS = 10_000
"""Reading more than this takes milliseconds, which nothing else should wait for."""


async def danger_of(tx: Connection, conversation_id: str, message: str, agent: PublishedAgent) -> str:
    """The category of the agent's words of danger that a new message has, by itself or with what its user has said
    last; empty where it has none, and for an agent without such words."""
    assembly = agent.definition.assembly
    if assembly is None or not assembly.danger:
        return ""
    last = "SELECT content FROM messages WHERE conversation_id = $1 AND role = 'user' ORDER BY seq DESC LIMIT 1"
    return await found(message, await tx.fetchval(last, conversation_id) or "", assembly.danger)


async def found(message: str, before: str, words: Words) -> str:
    """As `danger_in`, without holding up whatever else this process does."""
    if len(message) + len(before) < _LONG_CHARACTERS:
        return danger_in(message, before, words)
    return await asyncio.to_thread(danger_in, message, before, words)


async def answer(tx: Connection, address: TurnAddress, agent: PublishedAgent, category: str) -> None:
    """End the turn, which is queued, with the fixed text. It tells of its two stages as any other; no node has run."""
    assembly = agent.definition.assembly
    if assembly is None:
        return
    verdict: dict[str, JsonValue] = {"intent": assembly.default_intent, "safety_hijacked": True}
    checked = NewEvent(STAGE, {"stage": "preflight", **verdict, "safety_category": category, "at_once": True})
    await write(tx, address, [checked, NewEvent(STAGE, {"stage": "safety_intervention", "category": category})])
    await finish(tx, FinishAsk(address=address, status=TurnStatus.COMPLETED, answer=assembly.intervention))
