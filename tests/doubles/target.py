"""The target of the tools of tests/apps/desk: it counts its effects and has the faults that a call names.

A call's `mode` lists, attempt by attempt: nothing (does it), `refuse` (422), `busy` (429 with a wait), `later` (429
with one of a minute), `down` (no connection), `break` (does it, and the connection breaks), `lose` (the connection
breaks before it does anything), `hang` (does it and never answers), `wait` (answers when the test says so).
"""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx

from perdure.activities.toolbox.engine_tools import CORE_BY_NAME
from perdure.apps import App, load_app, publish
from perdure.contracts.agents import AgentDefinition, PublishedAgent
from perdure.sdk.tools import Tool

DESK = Path(__file__).parents[1] / "apps" / "desk"
KEYED = ("/pay", "/book", "/brief_key")


@dataclass(slots=True)
class World:
    effects: list[tuple[str, str]] = field(default_factory=list)
    """(path, idempotency key, or turn and call) of everything done, in order."""
    requests: Counter[str] = field(default_factory=Counter)
    """Requests by idempotency key, or by turn and call if there is none."""
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    """Lets calls in the mode `wait` answer."""
    running: int = 0
    _known: set[str] = field(default_factory=set)

    def count(self, path: str) -> int:
        return sum(1 for done, _ in self.effects if done == path)

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self._handle))

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        path = request.url.path
        key = request.headers.get("idempotency-key") or body["call"]
        number = self.requests[key]
        self.requests[key] += 1
        modes = str(body.get("mode") or "").split(",")
        mode = modes[number] if number < len(modes) else ""
        if mode == "down":
            raise httpx.ConnectError("nobody listens", request=request)
        if mode == "lose":
            raise httpx.ReadError("reset", request=request)
        if mode == "refuse":
            return httpx.Response(422, json={"message": "the desk says no"}, request=request)
        if mode in ("busy", "later"):
            return httpx.Response(429, headers={"retry-after": "0.1" if mode == "busy" else "60"}, request=request)
        if path not in KEYED or key not in self._known:
            self._known.add(key)
            self.effects.append((path, key))
        self.running += 1
        try:
            if mode == "hang":
                await asyncio.sleep(3600)
            if mode == "wait":
                await self.go_on.wait()
        finally:
            self.running -= 1
        if mode == "break":
            raise httpx.ReadError("reset", request=request)
        return httpx.Response(200, json={"done": path, "number": number}, request=request)


def app_agents() -> tuple[list[tuple[str, PublishedAgent]], list[tuple[str, Tool]]]:
    app = load_app(DESK)
    assert not app.problems, app.problems
    core = [tool.card for tool in CORE_BY_NAME.values()]
    published = [agent for each in app.agents for agent in publish(_alone(app, each), core)]
    assert len(published) == len(app.agents), "an agent of the desk is left out"
    tools = [
        (agent.definition.id, CORE_BY_NAME.get(card.name) or app.tools[card.name])
        for agent in published
        for card in agent.cards
    ]
    return [(app.name, agent) for agent in published], tools


def _alone(app: App, agent: AgentDefinition) -> App:
    """Returns the app with this agent only. The tools of an agent that loads toolsets are in one."""
    tools = app.tools
    if agent.toolsets:
        cards = {name: tool.card.model_copy(update={"toolset": "counter"}) for name, tool in tools.items()}
        tools = {name: replace(tool, card=cards[name]) for name, tool in tools.items()}
    return replace(app, agents=(agent,), tools=tools)
