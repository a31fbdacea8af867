"""Sends the same requests to the program on real Postgres; each can break off before any of its statements."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import asyncpg

from perdure.activities.tool_answers import settled_answer
from perdure.activities.tool_execution import ClaimedCall, VersionWait, claim_call
from perdure.activities.toolbox.registry import Toolbox
from perdure.activities.tools import uptime_seconds
from perdure.contracts.activities import VerdictsRequest
from perdure.contracts.agents import PublishedAgent
from perdure.contracts.approvals import ApprovalPolicy, OnTimeout, RequestRef
from perdure.contracts.calls import ToolCall, ToolCallRequest
from perdure.contracts.errors import CallerError, UpstreamUnavailable
from perdure.contracts.ids import approval_id
from perdure.contracts.turns import FinishRequest, TurnAddress, TurnStatus
from perdure.contracts.values import digest_of
from perdure.core.approvals.decisions import Decider
from perdure.core.calls.ledger import Attempt
from perdure.core.identity import OWN_CREDENTIAL
from perdure.sdk.tools import ToolResult
from perdure.store.approvals import assignments
from perdure.store.approvals.assignments import claim, escalate, reassign, release, withdraw
from perdure.store.approvals.decisions import SubmittedDecision, decide
from perdure.store.approvals.review import escalate_all_overdue, fall_back
from perdure.store.approvals.verdicts import read_verdicts
from perdure.store.calls import tool_calls
from perdure.store.database import Connection, new_id, set_up
from perdure.store.turns.finish import finish
from tests.doubles.target import app_agents
from tests.harness import Harness
from tests.protocol.model import REQUESTER, REVIEWER_ROLE, Policy, Request
from tests.served_turns import MANY

CALL = "t1.0"
TENANT = "local"
_SHIFTED = """
UPDATE approvals SET expires_at = expires_at - d, fallback_at = fallback_at - d, claimed_until = claimed_until - d,
  claimed_since = claimed_since - d,
  ready_at = ready_at - d FROM make_interval(secs => $2) d WHERE id = ANY($1)
"""
_ROLE_TURNED = """
UPDATE users SET roles = CASE WHEN $2 = ANY(roles) THEN array_remove(roles, $2) ELSE array_append(roles, $2) END
WHERE name = $1
"""
_NEW_VERSION = """
INSERT INTO agent_versions (tenant_id, agent_id, version, body) VALUES ('*', $1, $2, $3) ON CONFLICT DO NOTHING
"""
_CURRENT_VERSION = """
INSERT INTO agents (tenant_id, agent_id, version, app) VALUES ('*', $1, $2, 'desk')
ON CONFLICT (tenant_id, agent_id) DO UPDATE SET version = excluded.version
"""
_NEW_PERSON = """
INSERT INTO users (id, tenant_id, name, roles) SELECT $1, $2, $3, $4
WHERE NOT EXISTS (SELECT FROM users WHERE name = $3)
"""
_SEEN = """
SELECT a.id, a.status, a.version, a.reviewer_role AS role, a.reviewers, a.escalated_at IS NOT NULL AS escalated,
  (SELECT name FROM users WHERE id = a.assignee) AS assignee, c.state AS ledger, c.epoch,
  (SELECT name FROM users WHERE id = a.claimed_by AND a.claimed_until > clock_timestamp()) AS claimer,
  coalesce(a.revision->>'digest', a.digest) AS digest,
  (SELECT coalesce(jsonb_agg(jsonb_build_array(b.name, s.name) ORDER BY v.id), '[]') FROM approval_votes v
   JOIN users b ON b.id = v.user_id JOIN users s ON s.id = v.seat_id
   WHERE v.approval_id = a.id AND v.voided_at IS NULL) AS votes,
  (SELECT coalesce(jsonb_object_agg(kind, n), '{}') FROM (SELECT kind, count(*) AS n FROM audit
   WHERE subject = a.id::text GROUP BY kind) x) AS trail
FROM approvals a JOIN tool_calls c ON c.turn_id = a.turn_id AND c.call_id = a.call_id WHERE a.id = ANY($1)
"""


class Crash(Exception):
    """The process died before this statement; what it had written goes back."""


class Breaking:
    """A connection that breaks off before its `at`-th statement, counted from nought."""

    def __init__(self, connection: Connection, at: int) -> None:
        self._connection = connection
        self._left = at

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._connection, name)
        if name not in ("execute", "fetch", "fetchrow", "fetchval", "executemany"):
            return found
        if not self._left:
            raise Crash
        self._left -= 1
        return found


@dataclass(slots=True)
class Placed:
    address: TurnAddress
    agent_id: str
    agent_version: str
    approval_id: str
    digests: list[str]
    """A digest per version of the arguments."""
    epochs: set[int] = field(default_factory=set)

    @property
    def tool_call(self) -> ToolCall:
        """The request as the turn makes it."""
        request = ToolCallRequest(call_id=CALL, tool="pay")
        return ToolCall(address=self.address, agent_id=self.agent_id, agent_version=self.agent_version, ask=request)


@dataclass(frozen=True, slots=True)
class Seen:
    status: str
    version: int
    role: str
    reviewers: tuple[str, ...]
    assignee: str
    claimer: str
    escalated: bool
    votes: tuple[tuple[str, str], ...]
    """Reviewer and delegator of each vote."""
    trail: dict[str, int]
    """Audit rows by kind."""
    ledger: str
    epoch: int
    senders: tuple[int, ...] = ()
    """The epochs whose workers can send now."""


class RealSystem:
    def __init__(self, harness: Harness, owner: asyncpg.Connection, agents: dict[str, list[PublishedAgent]]) -> None:
        self._desk = harness
        self._owner = owner
        self._agents = agents
        self._published = dict.fromkeys(agents, 0)
        self._ids: dict[str, str] = {}
        self.calls: list[Placed] = []

    @classmethod
    async def create(cls, harness: Harness, policies: dict[str, tuple[Policy, Policy]]) -> "RealSystem":
        """The agent `desk` once for each policy, with its tools."""
        published, tools = app_agents()
        base = next(agent for _, agent in published if agent.definition.id == "desk")
        agents = {name: [_of_policy(base, policy) for policy in pair] for name, pair in policies.items()}
        mine = [(pair[0].definition.id, tool) for pair in agents.values() for of, tool in tools if of == "desk"]
        harness.deps = replace(
            harness.deps, toolbox=Toolbox([*tools, *mine], lambda name: None, harness.deps.toolbox.http)
        )
        owner = await asyncpg.connect(harness.owner_url, server_settings={"search_path": "perdure"})
        await set_up(owner)
        return cls(harness, owner, agents)

    async def close(self) -> None:
        await self._owner.close()

    async def begin(self, people: dict[str, frozenset[str]]) -> None:
        """Sets up these users with their roles, the first policies and no open request."""
        self.calls = []
        async with self._desk.db.transaction(TENANT) as tx:
            await tx.execute("UPDATE delegations SET ended_at = now() WHERE ended_at IS NULL")
            await tx.execute("UPDATE approvals SET status = 'cancelled' WHERE status = 'pending'")
            for name, roles in people.items():
                await tx.execute(_NEW_PERSON, new_id(), TENANT, name, list(roles))
                await tx.execute("UPDATE users SET roles = $2 WHERE name = $1", name, list(roles))
            self._ids = {row["name"]: str(row["id"]) for row in await tx.fetch("SELECT id, name FROM users")}
        for name in self._agents:
            await self._publish(name, 0)

    async def open(self, name: str) -> None:
        """A turn whose one call is planned and its approval opened."""
        agent = self._agents[name][self._published[name]]
        call: tuple[str, dict[str, Any]] = ("pay", {"amount": 7})
        address = await self._desk.plan(call, agent_id=agent.definition.id, by=REQUESTER, caps=MANY)
        await self._desk.open(address, CALL, agent_id=agent.definition.id)
        placed = Placed(address, agent.definition.id, agent.version, approval_id(address.turn_id, CALL), [])
        self.calls.append(placed)
        await self.read_calls()

    async def perform(self, request: Request, crash_at: int | None = None) -> str:
        """Returns the answer to a request, in the model's form. Raises Crash if it breaks off before a refusal."""
        turn_id = self.calls[request.call].address.turn_id if request.verb == "run" else None
        try:
            async with self._tx(crash_at, turn_id) as tx:
                said = str(await getattr(self, f"_{request.verb}")(tx, request))
        except CallerError as error:
            return f"409 {error.code}" if error.http == 409 else str(error.http)
        except UpstreamUnavailable as error:
            return error.code
        if said.startswith("acts "):
            self.calls[request.call].epochs.add(int(said.removeprefix("acts ")))
        return said

    async def read_calls(self) -> list[Seen]:
        async with self._desk.db.transaction(TENANT) as tx:
            rows = {str(row["id"]): row for row in await tx.fetch(_SEEN, [each.approval_id for each in self.calls])}
            return [await self._seen(tx, placed, rows[placed.approval_id]) for placed in self.calls]

    async def _seen(self, tx: Connection, placed: Placed, row: asyncpg.Record) -> Seen:
        if row["digest"] not in placed.digests:
            placed.digests.append(row["digest"])
        senders = [each for each in placed.epochs if await tool_calls.still_owned(tx, placed.tool_call, each)]
        same = {name: row[name] for name in ("status", "version", "role", "escalated", "trail", "ledger", "epoch")}
        return Seen(
            **same, reviewers=tuple(row["reviewers"]), assignee=row["assignee"] or "", claimer=row["claimer"] or "",
            votes=tuple((by, owner) for by, owner in row["votes"]), senders=tuple(senders),
        )  # fmt: skip

    @asynccontextmanager
    async def _tx(self, crash_at: int | None, turn_id: str | None = None) -> AsyncIterator[Connection]:
        async with self._desk.db.transaction(TENANT, turn_id) as tx:
            yield tx if crash_at is None else cast(Connection, Breaking(tx, crash_at))
            if crash_at is not None:
                raise Crash  # before its commit

    def _person(self, name: str) -> Decider:
        """The principal of a token that was checked long ago: with every role."""
        return Decider(self._ids[name], frozenset({"requester", "reviewer", "admin"}), name)

    def _approval(self, request: Request) -> str:
        return self.calls[request.call].approval_id

    async def _decide(self, tx: Connection, request: Request) -> str:
        digests = self.calls[request.call].digests
        given = {
            "decision": request.decision,
            "digest": digests[request.text] if request.text < len(digests) else "0" * 64,
            "args": None if request.amount is None else {"amount": request.amount},
            "comment": request.comment,
        }
        asked = SubmittedDecision.model_validate(given)
        decided, _ = await decide(tx, self._approval(request), self._person(request.user), request.user, asked)
        return decided.status

    async def _hand_over(self, tx: Connection, request: Request) -> str:
        approval, person = self._approval(request), self._person(request.user)
        match request.verb:
            case "withdraw":
                await withdraw(tx, approval, person, request.comment)
            case "claim":
                await claim(tx, approval, person, request.seconds)
            case "release":
                await release(tx, approval, person)
            case "reassign":
                await reassign(tx, approval, person, request.to, request.comment)
            case "escalate":
                await escalate(tx, approval, person, request.comment)
        return "withdrawn" if request.verb == "withdraw" else "pending"

    _withdraw = _claim = _release = _reassign = _escalate = _hand_over

    async def _delegate(self, tx: Connection, request: Request) -> str:
        until = datetime.now(UTC) + timedelta(seconds=request.seconds)
        await assignments.add_delegation(tx, self._ids[request.user], request.user, request.to, until, OWN_CREDENTIAL)
        return "delegated"

    async def _set_role(self, tx: Connection, request: Request) -> str:
        await tx.execute(_ROLE_TURNED, request.user, REVIEWER_ROLE)
        return "set"

    async def _pass_time(self, tx: Connection, request: Request) -> str:
        await tx.execute(_SHIFTED, [placed.approval_id for placed in self.calls], request.seconds)
        await tx.execute("UPDATE delegations SET until = until - make_interval(secs => $1)", request.seconds)
        return "later"

    async def _read(self, tx: Connection, request: Request) -> str:
        reference = RequestRef(request_id=self._approval(request), call_id=CALL, tool="pay")
        asked = VerdictsRequest(address=self.calls[request.call].address, requests=(reference,))
        return (await read_verdicts(tx, asked)).verdicts[0].state.value

    async def _reconcile(self, tx: Connection, request: Request) -> str:
        await escalate_all_overdue(tx)
        await fall_back(tx)
        return "reconciled"

    async def _run(self, tx: Connection, request: Request) -> str:
        attempt, call = Attempt("run-1", request.attempt), self.calls[request.call].tool_call
        held = await claim_call(self._desk.deps, tx, call, attempt, uptime_seconds(), VersionWait())
        if isinstance(held, ClaimedCall):
            return f"acts {held.epoch}"
        return held.problem.code if held.problem is not None else f"is {held.state.value}"

    async def _settle(self, tx: Connection, request: Request) -> str:
        call = self.calls[request.call].tool_call
        card = next(card for card in self._agents["plain"][0].cards if card.name == "pay")
        answer = settled_answer(call, card, None, ToolResult(output={"paid": True}))
        return (
            "settled" if await tool_calls.settle(tx, call, request.epoch, *answer.row, list(answer.events)) else "lost"
        )

    async def _give_back(self, tx: Connection, request: Request) -> str:
        await tool_calls.release(tx, self.calls[request.call].tool_call, request.epoch)
        return "given back"

    async def _end(self, tx: Connection, request: Request) -> str:
        await finish(tx, FinishRequest(address=self.calls[request.call].address, status=TurnStatus.STOPPED))
        return "over"

    async def _tamper(self, tx: Connection, request: Request) -> str:
        await tx.execute("UPDATE approvals SET args = $2 WHERE id = $1", self._approval(request), {"amount": 1_000_000})
        return "changed"

    async def _change_policy(self, tx: Connection, request: Request) -> str:
        if isinstance(tx, Breaking):
            raise Crash
        agent_id = self.calls[request.call].agent_id
        name = next(name for name, pair in self._agents.items() if pair[0].definition.id == agent_id)
        await self._publish(name, 1 - self._published[name])
        return "published"

    async def _publish(self, name: str, which: int) -> None:
        agent, owner = self._agents[name][which], self._owner
        async with owner.transaction():
            await owner.execute("SELECT set_config('perdure.tenant', '*', true)")
            await owner.execute(_NEW_VERSION, agent.definition.id, agent.version, agent.model_dump(mode="json"))
            await owner.execute(_CURRENT_VERSION, agent.definition.id, agent.version)
        self._published[name] = which


def _of_policy(base: PublishedAgent, policy: Policy) -> PublishedAgent:
    """The agent `desk` under this policy; calls go to its high-risk tool."""
    approvals = ApprovalPolicy(
        expires_seconds=policy.expires_seconds, allow_self_approval=policy.allow_self, reviewers=policy.reviewers,
        quorum=policy.quorum, on_timeout=OnTimeout.ESCALATE if policy.escalates else OnTimeout.DENY,
        fallback_reviewer=policy.fallback, fallback_after_seconds=policy.fallback_seconds,
        hold_seconds=policy.hold_seconds,
    )  # fmt: skip
    definition = base.definition.model_copy(update={"id": f"desk_{policy.name}", "approvals": approvals})
    version = digest_of([base.version, definition.model_dump(mode="json")])
    return base.model_copy(update={"definition": definition, "version": version})
