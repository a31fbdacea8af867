"""Fixtures of the app tests/apps/desk: its agents in the module's database, its target, its model, its activities.
`harness.activity(...)` runs a real activity as Temporal would, as any attempt of any run, without a worker."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import asyncpg
import pytest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from perdure.activities.approvals import ApprovalActivities
from perdure.activities.dependencies import Deps
from perdure.activities.model import ModelActivities
from perdure.activities.toolbox.registry import Toolbox
from perdure.activities.tools import ToolActivities
from perdure.contracts.activities import OpenRequest
from perdure.contracts.agents import PublishedAgent
from perdure.contracts.approvals import GatedCall, RequestKind, RequestRef
from perdure.contracts.calls import ModelCall, ModelCallRequest, ModelReply, ToolCall, ToolCallRequest, ToolOutcome
from perdure.contracts.ids import approval_id, effect_key, model_call_id
from perdure.contracts.messages import MessageRef, Role
from perdure.contracts.skills import DataTable
from perdure.contracts.turns import Finished, FinishRequest, Kind, Limits, Routing, TurnAddress, TurnStatus
from perdure.contracts.values import digest_of
from perdure.core.approvals.decisions import Decider, Decision
from perdure.core.turns import Caps, OnBusy
from perdure.local import DataParts
from perdure.sdk.tools import Tool
from perdure.store import agents as content
from perdure.store.approvals.decisions import Decided, SubmittedDecision, decide
from perdure.store.calls.effects import settle_by_person
from perdure.store.database import Database, new_id
from perdure.store.delivery.outbox import Note
from perdure.store.events.live import LiveTokens
from perdure.store.turns.finish import finish
from perdure.store.turns.start import NewTurn, StartedTurn, request_stop, start_turn
from perdure.store.valkey import Valkey
from perdure.temporal.client import DATA_CONVERTER
from perdure.temporal.workflow_client import Notifier
from tests.conftest import Person, Urls, as_owner
from tests.doubles.message_script import Line, MessageScriptModel, MessageScriptModels, script
from tests.doubles.target import World, app_agents

T = TypeVar("T")


class Rows:
    """Rows of a database, read and changed behind the program's back."""

    @property
    def db(self) -> Database:
        raise NotImplementedError

    async def rows(self, sql: str, *args: object, tenant: str = "local") -> list[asyncpg.Record]:
        async with self.db.transaction(tenant) as tx:
            found: list[asyncpg.Record] = await tx.fetch(sql, *args)
        return found

    async def value(self, sql: str, *args: object, tenant: str = "local") -> Any:
        rows = await self.rows(sql, *args, tenant=tenant)
        return rows[0][0] if rows else None

    async def write(self, sql: str, *args: object) -> str:
        """For example to turn back a deadline."""
        async with self.db.transaction("local") as tx:
            return str(await tx.execute(sql, *args))


@dataclass(slots=True)
class AppRecords(Rows):
    """The records of an app, read and changed as the API does, without HTTP."""

    deps: Deps
    people: dict[str, Person]
    routing: Routing

    @property
    def db(self) -> Database:
        return self.deps.db

    async def conversation(self, agent_id: str = "desk", by: str = "requester") -> str:
        conversation_id, person = new_id(), self.people[by]
        sql = "INSERT INTO conversations (id, tenant_id, user_id, agent_id) VALUES ($1, $2, $3, $4)"
        async with self.db.transaction(person.tenant_id) as tx:
            await tx.execute(sql, conversation_id, person.tenant_id, person.user_id, agent_id)
        return conversation_id

    async def decide(
        self, approval: str, decision: Decision = Decision.APPROVE, *, by: str = "reviewer", **given: Any
    ) -> tuple[Decided, Note | None]:
        """Decide as that person, on the digest that the record shows now."""
        person = self.people[by]
        async with self.db.transaction(person.tenant_id) as tx:
            digest = await tx.fetchval("SELECT digest FROM approvals WHERE id = $1", approval)
            ask = SubmittedDecision.model_validate({"decision": decision, "digest": digest, **given})
            return await decide(tx, approval, Decider(person.user_id, person.roles), person.name, ask)

    async def settle(
        self,
        address: TurnAddress,
        call_id: str = "t1.0",
        outcome: str = "happened",
        *,
        by: str = "reviewer",
        **said: str,
    ) -> Note:
        """State as that person what came of an effect whose outcome is unknown."""
        person, key = self.people[by], effect_key(address.turn_id, call_id)
        decider, comment = Decider(person.user_id, person.roles, person.name), said.get("comment", "I looked")
        async with self.db.transaction(person.tenant_id) as tx:
            return (await settle_by_person(tx, key, decider, outcome, comment))[1]

    async def stop(self, turn_id: str) -> Note | None:
        """Ask as the requester to stop the turn."""
        async with self.db.transaction("local") as tx:
            return (await request_stop(tx, turn_id, self.people["requester"].user_id))[2]

    async def finish(
        self, address: TurnAddress, status: TurnStatus = TurnStatus.STOPPED, **given: object
    ) -> tuple[Finished, Note | None]:
        async with self.db.transaction(address.tenant_id) as tx:
            return await finish(tx, FinishRequest.model_validate({"address": address, "status": status, **given}))

    async def turn(self, turn_id: str) -> asyncpg.Record:
        return (await self.rows("SELECT * FROM turns WHERE id = $1", turn_id))[0]

    async def kinds(self, turn_id: str) -> list[str]:
        rows = await self.rows("SELECT kind FROM events WHERE turn_id = $1 ORDER BY seq", turn_id)
        return [row["kind"] for row in rows]

    async def event_data(self, turn_id: str, kind: str) -> list[dict[str, Any]]:
        """The data of the turn's events of this kind."""
        rows = await self.rows("SELECT data FROM events WHERE turn_id = $1 AND kind = $2 ORDER BY seq", turn_id, kind)
        return [row["data"] for row in rows]

    async def nodes(self, turn_id: str) -> list[str]:
        """The nodes that the turn has completed."""
        return [data["node"] for data in await self.event_data(turn_id, "node_end")]


@dataclass(slots=True)
class Harness(AppRecords):
    world: World
    model: MessageScriptModel
    owner_url: str

    async def start(
        self,
        *lines: Line,
        agent_id: str = "desk",
        conversation_id: str | None = None,
        on_busy: OnBusy = OnBusy.REJECT,
        caps: Caps | None = None,
        limits: Limits | None = None,
        by: str = "requester",
    ) -> tuple[TurnAddress, StartedTurn]:
        """Start a turn whose model says these lines; its wake-up is not delivered."""
        person = self.people[by]
        conversation_id = conversation_id or await self.conversation(agent_id, by)
        given = {"on_busy": on_busy, "limits": limits, "routing": self.routing}
        new = NewTurn(person.tenant_id, conversation_id, person.user_id, script(*lines), **given)  # type: ignore[arg-type]
        async with self.db.transaction(person.tenant_id) as tx:
            started = await start_turn(tx, new, await content.current_agent(tx, agent_id), caps or Caps())
        address = TurnAddress(tenant_id=person.tenant_id, conversation_id=conversation_id, turn_id=started.turn_id)
        return address, started

    async def version(self, agent_id: str = "desk") -> str:
        async with self.db.transaction("local") as tx:
            return (await content.current_agent(tx, agent_id)).version

    async def activity(
        self,
        method: Callable[[Any], Awaitable[T]],
        given: Any,
        *,
        attempt: int = 1,
        run_id: str = "run-1",
        heartbeat: list[Any] | None = None,
    ) -> T:
        """Runs one attempt. `heartbeat` has what the attempts of the same activity record."""
        environment, recorded = ActivityEnvironment(), [] if heartbeat is None else heartbeat
        environment.on_heartbeat = lambda *details: recorded.__setitem__(slice(None), details)
        environment.info = replace(
            environment.info, attempt=attempt, workflow_run_id=run_id, heartbeat_details=[*recorded]
        )
        return await environment.run(method, given)

    async def model_call(self, address: TurnAddress, step: int = 1, agent_id: str = "desk") -> ModelCall:
        """The input of a model call that sees the user's message."""
        user = await self.value("SELECT message_id FROM turns WHERE id = $1", address.turn_id, tenant=address.tenant_id)
        version = await self.version(agent_id)
        async with self.db.transaction(address.tenant_id) as tx:
            agent = await self.deps.agent_cache.read_pinned(tx, agent_id, version)
        messages, tools = (MessageRef(id=str(user), role=Role.USER),), tuple(card.name for card in agent.cards)
        return ModelCall(
            address=address, call_id=model_call_id(step), agent_id=agent_id, agent_version=version,
            ask=ModelCallRequest(messages=messages, tools=tools),
        )  # fmt: skip

    async def plan(self, *calls: tuple[str, dict[str, Any]], agent_id: str = "desk", **given: Any) -> TurnAddress:
        """A turn whose first model call has returned these calls and is settled."""
        address, _ = await self.start(Line("asking", calls), agent_id=agent_id, **given)
        call = await self.model_call(address, 1, agent_id)
        reply: ModelReply = await self.activity(ModelActivities(self.deps).complete, call)
        assert reply.message is not None and len(reply.message.calls) == len(calls)
        return address

    async def tool_call(self, address: TurnAddress, call_id: str, agent_id: str = "desk") -> ToolCall:
        ask = ToolCallRequest(call_id=call_id, tool=await self._tool(address, call_id))
        return ToolCall(address=address, agent_id=agent_id, agent_version=await self.version(agent_id), ask=ask)

    async def _tool(self, address: TurnAddress, call_id: str) -> str:
        sql = "SELECT tool FROM tool_calls WHERE turn_id = $1 AND call_id = $2"
        return str(await self.value(sql, address.turn_id, call_id, tenant=address.tenant_id))

    async def run_tool(
        self, address: TurnAddress, call_id: str = "t1.0", *, attempt: int = 1, run_id: str = "run-1", waits: int = 0
    ) -> ToolOutcome:
        """Runs one attempt. So many of the attempts before it only waited."""
        call = await self.tool_call(address, call_id)
        given: dict[str, Any] = {"attempt": attempt, "run_id": run_id, "heartbeat": [[waits, ""]] if waits else None}
        return await self.activity(ToolActivities(self.deps).run, call, **given)

    async def open(self, address: TurnAddress, *call_ids: str, agent_id: str = "desk") -> list[RequestRef]:
        gated = [GatedCall(call_id=each, tool=await self._tool(address, each), rule="test") for each in call_ids]
        version = await self.version(agent_id)
        ask = OpenRequest(address=address, agent_id=agent_id, agent_version=version, gated=tuple(gated))
        return list((await self.activity(ApprovalActivities(self.deps).open, ask)).requests)

    async def request_approval(self, **args: Any) -> tuple[TurnAddress, RequestRef]:
        """A turn that waits before a call of `pay`."""
        address = await self.plan(("pay", args))
        (request,) = await self.open(address, "t1.0")
        return address, request

    async def approved(self, *calls: tuple[str, dict[str, Any]], agent_id: str = "desk", **given: Any) -> TurnAddress:
        address = await self.plan(*calls, agent_id=agent_id, **given)
        call_ids = [f"t1.{index}" for index in range(len(calls))]
        for request in await self.open(address, *call_ids, agent_id=agent_id):
            await self.decide(request.request_id)
        return address

    async def call_row(self, address: TurnAddress, call_id: str = "t1.0") -> asyncpg.Record:
        rows = await self.rows("SELECT * FROM tool_calls WHERE turn_id = $1 AND call_id = $2", address.turn_id, call_id)
        return rows[0]

    async def approval_row(self, address: TurnAddress, call_id: str = "t1.0") -> asyncpg.Record:
        return (await self.rows("SELECT * FROM approvals WHERE id = $1", approval_id(address.turn_id, call_id)))[0]

    async def make_older(self, *turns: TurnAddress) -> None:
        """As the reconciler takes them up."""
        statement = "UPDATE turns SET created_at = created_at - interval '1 minute' WHERE id = ANY($1)"
        await self.write(statement, [address.turn_id for address in turns])

    async def republished(self, name: tuple[str, str], tool: Tool) -> None:
        agents = []
        for app, agent in app_agents()[0]:
            if agent.definition.id == name[0]:
                cards = tuple(tool.card if card.name == name[1] else card for card in agent.cards)
                version = digest_of([card.version for card in cards])
                agent = agent.model_copy(update={"cards": cards, "version": version})
            agents.append((app, agent))
        await publish_app(self.owner_url, agents)


def effect_ref(address: TurnAddress, call_id: str = "t1.0", tool: str = "post") -> RequestRef:
    key = effect_key(address.turn_id, call_id)
    return RequestRef(request_id=key, kind=RequestKind.EFFECT, call_id=call_id, tool=tool)


async def publish_app(
    owner_url: str, agents: Sequence[tuple[str, PublishedAgent]] | None = None, tables: Sequence[DataTable] = ()
) -> None:
    harness = app_agents()[0] if agents is None else agents
    await _publish(owner_url, harness, {agent.definition.id for _, agent in harness}, tables)


async def withdraw_agent(owner_url: str, agent_id: str) -> None:
    await _publish(owner_url, (), {agent_id})


async def _publish(
    owner_url: str, agents: Sequence[tuple[str, PublishedAgent]], without: set[str], tables: Sequence[DataTable] = ()
) -> None:
    async with as_owner(owner_url, "*") as owner, owner.transaction():
        others = [each for each in await content.list_agents(owner) if each[1].definition.id not in without]
        await content.publish_agent(owner, [*others, *agents], tables)


def own_queues(base: Routing | None = None) -> Routing:
    """The queues of this routing under names of their own."""
    own, base = new_id()[-8:], base or Routing()
    return Routing(**{kind.value: f"{base.queue(kind)}-{own}" for kind in Kind})


@pytest.fixture(scope="session")
async def temporal(parts: DataParts) -> Client:
    assert parts.temporal is not None
    address, namespace = parts.temporal.address, parts.temporal.namespace
    return await Client.connect(address, namespace=namespace, data_converter=DATA_CONVERTER)


@pytest.fixture(scope="module")
async def harness(
    parts: DataParts, urls: Urls, db: Database, people: dict[str, Person], temporal: Client
) -> AsyncIterator[Harness]:
    """The test app on the module's database and the module's own queues, without workers yet."""
    assert parts.redis_url is not None
    await publish_app(urls.owner)
    world, model = World(), MessageScriptModel()
    async with AsyncExitStack() as stack:
        valkey = Valkey.connect(parts.redis_url)
        stack.push_async_callback(valkey.close)
        http = await stack.enter_async_context(world.client())
        toolbox = Toolbox(app_agents()[1], lambda name: None, http)
        clients = db, LiveTokens(valkey), toolbox, MessageScriptModels(model), Notifier(temporal, db)
        deps = Deps(*clients, version_wait_seconds=0.5)
        yield Harness(deps, people, own_queues(), world, model, urls.owner)


async def gathered(*work: Awaitable[T]) -> list[T | BaseException]:
    return await asyncio.gather(*work, return_exceptions=True)
