"""The desk with other policies, and more people to decide: an agent for each policy, under the policy's name."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from perdure.activities.approvals import ApprovalActivities
from perdure.activities.toolbox.registry import Toolbox
from perdure.contracts.activities import VerdictsRequest
from perdure.contracts.agents import PublishedAgent, ToolCard
from perdure.contracts.approvals import ApprovalPolicy, RequestRef, Verdict
from perdure.contracts.turns import TurnAddress
from perdure.contracts.values import digest_of
from perdure.core.approvals.decisions import Decider
from perdure.core.turns import Caps
from perdure.store.database import new_id
from tests.conftest import Person
from tests.doubles.target import app_agents
from tests.harness import Harness, publish_app

POLICIES: dict[str, dict[str, Any]] = {
    "pair": {"quorum": 2}, "named": {"reviewers": ["ann", "bob"], "quorum": 2}, "held": {"hold_seconds": 3600},
    "climbing": {"on_timeout": "escalate", "expires_seconds": 60},
    "watched": {"fallback_reviewer": "carl", "fallback_after_seconds": 60},
    "orphaned": {"fallback_reviewer": "requester", "fallback_after_seconds": 60}, "plain": {},
}  # fmt: skip

_ROOM = Caps(turns_a_user=10_000)


@dataclass(frozen=True, slots=True)
class Policies:
    harness: Harness

    async def request_approval(
        self, policy: str, *, by: str = "requester", **args: Any
    ) -> tuple[TurnAddress, RequestRef]:
        address = await self.harness.plan(("pay", args or {"amount": 7}), agent_id=policy, by=by, caps=_ROOM)
        (request,) = await self.harness.open(address, "t1.0", agent_id=policy)
        return address, request

    async def verdict(self, address: TurnAddress, request: RequestRef) -> Verdict:
        ask = VerdictsRequest(address=address, requests=(request,))
        return (await self.harness.activity(ApprovalActivities(self.harness.deps).read, ask)).verdicts[0]

    async def row(self, request: RequestRef) -> dict[str, Any]:
        return dict((await self.harness.rows("SELECT * FROM approvals WHERE id = $1", request.request_id))[0])

    async def audited(self, request: RequestRef) -> list[str]:
        rows = await self.harness.rows("SELECT kind FROM audit WHERE subject = $1 ORDER BY id", request.request_id)
        return [row["kind"].removeprefix("approval.") for row in rows]

    async def set(self, request: RequestRef, what: str) -> None:
        await self.harness.write(f"UPDATE approvals SET {what} WHERE id = $1", request.request_id)

    def who(self, name: str) -> Decider:
        person = self.harness.people[name]
        return Decider(person.user_id, person.roles, person.name)

    async def roles(self, name: str, *roles: str) -> None:
        """Gives a user exactly these roles, unseen by callers that have read the former ones."""
        await self.harness.write("UPDATE users SET roles = $2 WHERE name = $1", name, list(roles))

    async def republish(self, changed: Mapping[str, Mapping[str, Any]], card: ToolCard | None = None) -> None:
        """Publish the agents with other policies, or with another card of one tool."""
        await publish_app(self.harness.owner_url, _agents({**POLICIES, **changed}, card))


def _agents(
    policies: Mapping[str, Mapping[str, Any]], card: ToolCard | None = None
) -> list[tuple[str, PublishedAgent]]:
    agents, _ = app_agents()
    harness = next(agent for _, agent in agents if agent.definition.id == "desk")
    cards = tuple(card if card is not None and each.name == card.name else each for each in harness.cards)
    made = []
    for name, policy in policies.items():
        changed: dict[str, Any] = {"id": name, "approvals": ApprovalPolicy.model_validate(policy)}
        definition = harness.definition.model_copy(update=changed)
        version = digest_of([definition.model_dump(mode="json"), [each.version for each in cards]])
        made.append(("desk", harness.model_copy(update={"definition": definition, "cards": cards, "version": version})))
    return [*agents, *made]


async def publish_policies(harness: Harness) -> Policies:
    """Publish the agents, and let ann, bob and carl have the role; dora has none."""
    await publish_app(harness.owner_url, _agents(POLICIES))
    tools = [(name, tool) for name in POLICIES for agent, tool in app_agents()[1] if agent == "desk"]
    toolbox = Toolbox([*app_agents()[1], *tools], lambda name: None, harness.deps.toolbox.http)
    people = dict(harness.people)
    for name in ("ann", "bob", "carl", "dora"):
        roles = [] if name == "dora" else ["reviewer"]
        async with harness.db.transaction("local") as tx:
            user_id = await tx.fetchval("SELECT id FROM users WHERE name = $1", name)
            if user_id is None:
                user_id = new_id()
                await tx.execute(
                    "INSERT INTO users (id, tenant_id, name, roles) VALUES ($1, 'local', $2, $3)", user_id, name, roles
                )
        people[name] = Person("local", str(user_id), name, frozenset(roles), "")
    return Policies(replace(harness, deps=replace(harness.deps, toolbox=toolbox), people=people))
