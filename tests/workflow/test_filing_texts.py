"""The contract's texts for `rule_37`: registered, assessed, filed past its checkpoint, for each player of the model.

By a provider double that says what the script says through LiteLLM over real HTTP, on either wire; what goes over it is
looked at too.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from perdure.activities.providers.provider import Complete, ProviderRequest, TextDelta
from perdure.activities.providers.scripted import Script, ScriptedProvider, read_script
from perdure.contracts.ids import approval_id
from perdure.contracts.turns import Routing, TurnStatus
from perdure.core.approvals.decisions import Decision
from perdure.store import agents
from perdure.store.approvals import views
from tests.conftest import Urls
from tests.doubles.desk_variants import changed_agent
from tests.doubles.providers.client import UNWARNED
from tests.doubles.providers.requests import Seen, SentRequest, openai_messages, requests_of
from tests.doubles.providers.script import Call, Step
from tests.doubles.providers.server import Answers, ProviderDouble
from tests.harness import own_queues, publish_app
from tests.workflow.conftest import Engine

pytestmark = UNWARNED

AWAITING = TurnStatus.AWAITING_APPROVAL
AGENT = "rule_37"
WELL = "Mitchell Ranch 1H"
FILING = f"Prepare the Rule 37 filing for {WELL}"
CORE = ["context_assemble", "create_entity", "entity_resolve"]
BLOCKS = ["good_cause_narrative", "offset_well_analysis", "rule37_filing_assembly", "spacing_assessment"]
PLAYERS = {"openai/gpt-4o-mini": Routing.spread(), "anthropic/claude-sonnet-4-5": Routing.compact()}


def answers_of(script: Script) -> Answers:
    """An agent's own script, for requests in OpenAI's or Anthropic's form."""
    model = ScriptedProvider(script.model_copy(update={"tokens_per_second": 0.0}))

    async def answer(seen: Seen) -> Step:
        tools: list[dict[str, Any]] = [{"function": {"name": name, "parameters": {}}} for name in seen.tools]
        request = ProviderRequest(seen.model, tuple(openai_messages(seen.body)), tuple(tools))
        chunks = [chunk async for chunk in model.stream(request)]
        drafts = [draft for chunk in chunks if isinstance(chunk, Complete) for draft in chunk.tool_calls]
        calls = [Call(name=each.name, arguments=each.raw_arguments, id=each.provider_id) for each in drafts]
        text = "".join(chunk.text for chunk in chunks if isinstance(chunk, TextDelta))
        return Step(text=text, calls=tuple(calls))

    return answer


@pytest.fixture(scope="module", params=PLAYERS)
def player(request: pytest.FixtureRequest) -> str:
    """The kind of model that answers."""
    return str(request.param)


@pytest.fixture(scope="module")
def routing(player: str) -> Routing:
    """Queues of this module's own."""
    return own_queues(PLAYERS[player])


@dataclass(frozen=True, slots=True)
class Filings:
    engine: Engine
    model: str
    double: ProviderDouble

    async def paused(self, text: str) -> tuple[str, dict[str, Any]]:
        started = await self.engine.begin(text, agent_id=AGENT)
        row = await self.engine.until(started.turn_id, seconds=60)
        assert row["status"] == AWAITING.value, (row["problem"], row["answer"])
        async with self.engine.deps.db.transaction("local") as tx:
            return started.turn_id, await views.get_approval(tx, row["waiting"]["ids"][0], None)

    async def answer(self, turn_id: str, calls: int) -> str:
        """The turn's answer, after checking that so many calls each have one settled result."""
        row = await self.engine.until(turn_id, TurnStatus.COMPLETED)
        ran = await self.engine.rows(
            "SELECT c.call_id, c.state, count(m.id) AS results FROM tool_calls c LEFT JOIN messages m "
            "ON m.turn_id = c.turn_id AND m.call_id = c.call_id AND m.role = 'tool' "
            "WHERE c.turn_id = $1 GROUP BY c.call_id, c.state",
            turn_id,
        )
        assert [(each["state"], each["results"]) for each in ran] == [("done", 1)] * calls
        return str(row["answer"])

    def provider_requests(self, turn_id: str) -> list[SentRequest]:
        found = requests_of(turn_id, self.double.requests)
        assert len({request.prefix for request in found}) == 1, "the prefix is the same bytes in every request"
        for request in found:
            assert request.breakpoints == (["system.0"] if self.model.startswith("anthropic/") else [])
        return found


@pytest.fixture(scope="module")
async def filings(engine: Engine, urls: Urls, player: str) -> AsyncIterator[Filings]:
    """The agent as shipped, but for its model."""
    async with engine.deps.db.transaction("local") as tx:
        agent = await agents.current_agent(tx, AGENT)
    answers = answers_of(read_script(agent.definition.script))
    with ProviderDouble(answers=answers) as double, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERDURE_SECRET_MODEL_KEY", "sk-of-the-test")
        params = {"api_base": double.params_for(player)["api_base"], "api_key_secret": "model_key"}
        ours = changed_agent(agent, model=player, model_params=params)
        await publish_app(urls.owner, [("filings", ours)])
        provider: Any = await engine.deps.models.provider(ours)
        yield Filings(engine, player, double)
        await provider.aclose()


async def test_the_spacing_is_assessed_by_the_block_of_the_skill(filings: Filings) -> None:
    started = await filings.engine.begin(f"Assess spacing for {WELL}", agent_id=AGENT)
    answer = await filings.answer(started.turn_id, 1)
    assert " ft" in answer, answer
    calls = await filings.engine.rows("SELECT tool FROM tool_calls WHERE turn_id = $1", started.turn_id)
    assert [call["tool"] for call in calls] == ["spacing_assessment"]
    assert "skill_inject_node" in await filings.engine.nodes(started.turn_id)
    sent = filings.provider_requests(started.turn_id)
    assert [sorted(request.seen.tools) for request in sent] == [CORE, CORE + BLOCKS, CORE + BLOCKS]
    assert [len(request.notes) for request in sent] == [0, 2, 2], "the skill, after what it depends on"
    assert sent[1].notes[1].startswith("=== Skill Activated: Rule 37 spacing ===")
    assert all(request.seen.authorized for request in sent)


@pytest.mark.parametrize(("decision", "given", "told", "calls"), [
    (Decision.APPROVE, {}, WELL, 1),
    (Decision.REJECT, {"comment": "the plat is missing"}, "the plat is missing", 1),
    (Decision.EDIT, {"args": {"well_name": "Dry Fork 2"}}, "Dry Fork 2", 2),
    (Decision.RESPOND, {"comment": "keep it until Monday"}, "keep it until Monday", 1),
], ids=["approve", "reject", "edit", "respond"])  # fmt: skip
async def test_a_filing_waits_with_its_package_and_each_decision_ends_it(
    filings: Filings, decision: Decision, given: dict[str, Any], told: str, calls: int
) -> None:
    turn_id, shown = await filings.paused(FILING)
    assert (shown["kind"], shown["checkpoint"], shown["tool"]) == ("checkpoint", "pre_filing", "rule37_filing_assembly")
    assert shown["result"]["result"]["form"] == "W-1", "the reviewer sees the package"
    assert shown["rule"] == "filings/rrc_rule37:pre_filing_review"
    asked = filings.provider_requests(turn_id)
    await filings.engine.decide_and_wake(shown["id"], decision, **given)
    assert told in await filings.answer(turn_id, calls)
    assert shown["id"] in {approval_id(turn_id, call_id) for call_id in ("c2.0", "c1.0", "c3.0")}
    sent = filings.provider_requests(turn_id)
    assert (len(asked), len(sent)) == (2, 3), "the model is asked once more"
    assert sum(len(message.get("tool_calls", [])) for message in sent[-1].messages) == calls
    assert len([note for note in sent[-1].notes if given.get("comment", "no comment") in note]) == ("comment" in given)
