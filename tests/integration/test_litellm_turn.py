"""Whole turns whose model is reached through LiteLLM over real HTTP: one that means no good, and charts."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest
from temporalio.client import Client

from perdure.activities.providers.registry import Models, first_that_answers
from perdure.activities.toolbox.registry import Toolbox
from perdure.apps import SHIPPED, load_app, played_by, publish
from perdure.contracts.events import RATE_LIMIT, TRANSIENT_ERROR
from perdure.contracts.ids import effect_key
from perdure.contracts.turns import Limits, TurnAddress, TurnStatus
from perdure.contracts.values import digest_of
from perdure.core.budgets import USUAL_ANSWER_TOKENS
from perdure.core.calls.retries import PROVIDER_ERRORS
from perdure.core.text import CHARACTERS_A_TOKEN
from perdure.sdk.tables import read_csv
from perdure.sdk.tables.client_side import ClientTable
from perdure.settings import Settings
from perdure.store.approvals import requests as questions
from perdure.store.database import new_id
from perdure.store.memory import files
from tests.doubles.provider import ProviderDouble
from tests.doubles.provider_steps import CONTEXT_OVERFLOW, Call, Fault, Step
from tests.doubles.spoken import Line
from tests.harness import Harness, publish_app
from tests.integration.litellm_agent import ASKED, LITELLM_AGENT, LitellmAgent
from tests.integration.turn_writer import text_of
from tests.served import ALL_KINDS, Served, serve

# Warnings inside LiteLLM must not become errors there: it would take them for a broken stream.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),
    pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince211"),
]


async def test_text_and_reasoning_reach_the_reader_as_they_come_and_the_text_is_the_answer(talk: LitellmAgent) -> None:
    thinking, text = "The user wants me to look into something.", "Here is what I have found out."
    address = await talk.begin(Step(thinking=thinking, text=text, token_seconds=0.2))
    sent = await talk.seen_by_reader(address)
    kinds = [event.kind for event in sent]
    thoughts = [event for event in sent if event.kind == "thinking"]
    assert kinds.count("token") >= 3 and len(thoughts) >= 3, "in pieces, and not as one"
    assert "".join(str(event.data["text"]) for event in thoughts) == thinking
    assert all(event.id and event.data["call_id"] == "m1" for event in thoughts)
    order = ("generation.start", "thinking", "token", "thinking.complete", "ttft", "generation.complete")
    places = [kinds.index(kind) for kind in order]
    assert places == sorted(places) and "reset" not in kinds
    row = await talk.served.until(address, TurnStatus.COMPLETED)
    assert row["answer"] == text_of(sent) == text
    assert len(talk.double.requests) == row["attempts"] == 1
    thought = "SELECT (reply -> 'usage' ->> 'thinking_tokens')::int FROM model_calls WHERE turn_id = $1"
    assert await talk.served.harness.value(thought, address.turn_id) > 0


async def test_a_round_of_tools_is_told_to_the_provider_with_the_ids_that_it_gave(talk: LitellmAgent) -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 60}}
    calls = (Call(name="look", arguments={"what": "x"}, id="call_a"), Call(name="book", arguments={}, id="call_b"))
    address, row = await talk.ended(
        Step(text="Let me see.", calls=calls, usage=usage), Step(text="It is booked.", usage=usage)
    )
    assert (row["status"], row["answer"]) == ("completed", "It is booked.")
    assert await talk.served.states(address) == {"t1.0": "done", "t1.1": "done"}
    assert talk.served.effects(address, "/book", "t1.1") == 1
    first, second = talk.double.requests
    assert [seen.idempotency_key for seen in (first, second)] == [f"{address.turn_id}.m1", f"{address.turn_id}.m2"]
    assert "please look into it" in first.user_text and {"look", "pay", "entity_resolve"} <= set(first.tools)
    assert first.authorized and first.body["temperature"] == 0.2 and "api_key_secret" not in json.dumps(first.body)
    told: Any = second.body["messages"]
    asked, *answers = told[-3:]
    assert [call["function"]["name"] for call in asked["tool_calls"]] == ["look", "book"]
    assert [call["id"] for call in asked["tool_calls"]] == [answer["tool_call_id"] for answer in answers]
    assert [json.loads(answer["content"])["done"] for answer in answers] == ["/look", "/book"]
    # Each 40 at 0.15, 60 cached at 0.075 and 5 at 0.60 dollars a million: 13.5 micro-dollars.
    assert (row["input_tokens"], row["output_tokens"], row["cached_tokens"], row["cost_microusd"]) == (200, 10, 120, 28)
    counted = {"input_tokens": 100, "output_tokens": 5, "cached_tokens": 60}
    assert await talk.data(address, "token.usage") == [counted] * 2


async def test_a_gated_call_waits_for_its_approval_unless_its_arguments_do_not_fit(talk: LitellmAgent) -> None:
    wrong, right = (Step(calls=(Call(name="pay", arguments={"amount": amount}),)) for amount in ("a lot", 7))
    address = await talk.begin(wrong, right, Step(text="paid"))
    await talk.served.until(address, TurnStatus.AWAITING_APPROVAL)
    told: Any = talk.double.requests[-1].body["messages"]
    assert len(talk.double.requests) == 2 and told[-1]["role"] == "tool" and "amount" in told[-1]["content"]
    (frozen,) = await talk.served.harness.rows("SELECT args FROM approvals WHERE turn_id = $1", address.turn_id)
    assert frozen["args"]["amount"] == 7, "a person is asked for what can run alone"
    await talk.served.decide(address, "t2.0")
    row = await talk.served.until(address, TurnStatus.COMPLETED)
    assert (row["answer"], row["attempts"]) == ("paid", 3)
    assert await talk.served.states(address) == {"t1.0": "failed", "t2.0": "done"}
    assert talk.served.harness.world.requests[effect_key(address.turn_id, "t2.0")] == 1


async def test_a_rate_limit_is_waited_for_as_long_as_it_says_and_is_in_the_events(talk: LitellmAgent) -> None:
    address, row = await talk.ended(Step(status=429, retry_after="2"), Step(text="now"))
    assert (row["status"], row["answer"], row["attempts"]) == ("completed", "now", 2)
    first, second = talk.double.requests
    assert second.received_at - first.received_at >= 2
    assert first.idempotency_key == second.idempotency_key
    told = {"code": "model_rate_limited", "retry_in": 2.0, "attempt": 1, "max_retries": PROVIDER_ERRORS - 1}
    assert await talk.data(address, RATE_LIMIT) == [told] and await talk.data(address, TRANSIENT_ERROR) == []
    assert [event["attempt"] for event in await talk.data(address, "generation.start")] == [1, 2]


async def test_a_conversation_that_is_too_long_is_tried_once_more_with_half_of_it(talk: LitellmAgent) -> None:
    first, _ = await talk.ended(Step(text="A long story. " * 200))
    talk.double.script(CONTEXT_OVERFLOW, Step(text="shorter"))
    address = await talk.served.begin(ASKED, agent_id=LITELLM_AGENT, conversation_id=first.conversation_id)
    row = await talk.served.until(address, TurnStatus.COMPLETED, TurnStatus.FAILED)
    assert (row["status"], row["answer"], row["attempts"]) == ("completed", "shorter", 2)
    whole, half = (str(request.body["messages"]) for request in talk.double.requests[-2:])
    assert "A long story." in whole and "A long story." not in half
    assert [told["code"] for told in await talk.data(address, TRANSIENT_ERROR)] == ["context_overflow"]
    assert len(await talk.served.transcript(first)) == 1, "what is stored stays whole"


async def test_a_reset_in_the_middle_of_a_text_leaves_one_clean_text_for_everybody(talk: LitellmAgent) -> None:
    whole = "One two three four five."
    address = await talk.begin(
        Step(text="One two three four ", fault=Fault.RESET, token_seconds=0.2), Step(text=whole, token_seconds=0.2)
    )
    sent = await talk.seen_by_reader(address)
    row = await talk.served.until(address, TurnStatus.COMPLETED)
    assert row["answer"] == text_of(sent) == whole
    assert [event.kind for event in sent].count("reset") == 1, "the reader had heard the half, and forgets it"
    assert await talk.served.transcript(address) == [("assistant", whole)]
    assert [row["content"] for row in await talk.said(address)] == [whole]
    assert [seen.outcome for seen in talk.double.requests] == ["reset", "answered"] and row["attempts"] == 2
    assert [told["code"] for told in await talk.data(address, TRANSIENT_ERROR)] == ["model_unavailable"]
    settled = await talk.data(address, "token.usage")
    assert row["output_tokens"] > settled[0]["output_tokens"], "what broke off had been begun, and is counted too"


async def test_garbage_without_end_fails_the_turn_with_a_code_and_none_of_the_garbage(talk: LitellmAgent) -> None:
    address, row = await talk.ended(Step(text="Half an ", fault=Fault.GARBAGE, times=None))
    assert (row["status"], row["problem"]["code"]) == ("failed", "model_unavailable")
    assert row["attempts"] == PROVIDER_ERRORS
    assert len(await talk.data(address, TRANSIENT_ERROR)) == PROVIDER_ERRORS - 1
    assert "<<<<<" not in json.dumps(row["problem"])
    kept = await talk.said(address)
    assert [(row["content"], row["partial"]) for row in kept] == [("Half an ", True)], "once, and marked"
    history = (await talk.served.history(address)).to_json()
    assert "<<<<<" not in history and "sk-of-the-test" not in history


async def test_words_without_end_are_broken_off_at_the_turns_limit_and_those_said_are_kept(talk: LitellmAgent) -> None:
    talk.double.script(Step(text="One two ", fault=Fault.ENDLESS))
    address = await talk.served.begin(ASKED, agent_id=LITELLM_AGENT, limits=Limits(max_tokens=2_000))
    sent = await talk.seen_by_reader(address)
    row = await talk.served.until(address, TurnStatus.LIMITED, TurnStatus.FAILED, seconds=40)
    assert (row["status"], row["problem"]["code"], row["attempts"]) == ("limited", "answer_over_budget", 1)
    ((said, partial),) = [(each["content"], each["partial"]) for each in await talk.said(address)]
    most_tokens = 2_000 + USUAL_ANSWER_TOKENS
    assert partial and said.startswith("One two word0 ") and len(said) <= most_tokens * CHARACTERS_A_TOKEN
    assert text_of(sent) == said, "the reader holds what is stored"
    assert 0.8 * most_tokens < row["output_tokens"] <= most_tokens + 1_000, "what the provider said is counted, once"
    assert [data["code"] for data in await talk.data(address, "budget")] == ["answer_over_budget"]
    assert [seen.outcome for seen in talk.double.requests] == ["client_gone"], "the request was ended, and not repeated"


async def test_five_megabytes_of_arguments_are_a_typed_end_and_no_call(talk: LitellmAgent) -> None:
    address = await talk.begin(Step(text="I pay. ", fault=Fault.HUGE_ARGUMENTS))
    row = await talk.served.until(address, TurnStatus.LIMITED, TurnStatus.FAILED, seconds=40)
    assert (row["status"], row["problem"]["code"], row["attempts"]) == ("limited", "answer_over_budget", 1)
    assert row["output_tokens"] > Limits().max_tokens, "they are paid for all the same"
    assert await talk.served.states(address) == {}
    assert len((await talk.served.history(address)).to_json()) < 256 * 1024


async def test_a_model_that_asks_for_tools_that_nobody_has_ends_at_the_limit_of_rounds(talk: LitellmAgent) -> None:
    calls = (Call(name="rm_rf", arguments={"path": "/"}), Call(name="look\n; drop", arguments={}))
    talk.double.script(Step(calls=calls, times=None))
    address = await talk.served.begin(ASKED, agent_id=LITELLM_AGENT, limits=Limits(max_iterations=3))
    row = await talk.served.until(address, TurnStatus.LIMITED, TurnStatus.FAILED, TurnStatus.COMPLETED, seconds=40)
    assert row["status"] == "limited" and len(talk.double.requests) <= 5
    assert set((await talk.served.states(address)).values()) == {"failed"}
    told: Any = talk.double.requests[1].body["messages"]
    assert [message["role"] for message in told[-2:]] == ["tool", "tool"], "each call has its answer"
    assert not await talk.served.harness.rows("SELECT id FROM approvals WHERE turn_id = $1", address.turn_id)


async def test_calls_that_repeat_an_id_of_kilobytes_are_each_run_once_under_ids_of_ours(talk: LitellmAgent) -> None:
    signed = "call_1__thought__" + "QUJD" * 1_000
    twice = tuple(Call(name="look", arguments={"what": what}, id=signed, index=at) for at, what in enumerate("ab"))
    address, row = await talk.ended(Step(calls=twice), Step(calls=twice), Step(text="Seen."))
    assert (row["status"], row["answer"]) == ("completed", "Seen.")
    assert await talk.served.states(address) == {"t1.0": "done", "t1.1": "done", "t2.0": "done", "t2.1": "done"}
    told: Any = talk.double.requests[2].body["messages"]
    ids = [call["id"] for message in told for call in message.get("tool_calls") or ()]
    assert len(ids) == len(set(ids)) == 4, "a provider refuses a request that names a call twice"
    assert ids == [message["tool_call_id"] for message in told if message["role"] == "tool"]
    kept = await talk.served.harness.rows("SELECT provider_call_id FROM tool_calls WHERE turn_id = $1", address.turn_id)
    assert signed in [row["provider_call_id"] for row in kept], "it is kept whole, and shown to nobody"
    events = await talk.served.harness.rows("SELECT call_id, data FROM events WHERE turn_id = $1", address.turn_id)
    assert "__thought__" not in json.dumps([[event["call_id"], event["data"]] for event in events])


AGENT = "charts_by_model"
CSV = b"region,sales\nNorth,30\nSouth,10\n"
RESTING = (TurnStatus.COMPLETED, TurnStatus.FAILED, TurnStatus.AWAITING_ANSWER)
GROUP = '<group><by column="region"/><aggregate column="sales" function="sum" as="sales"/></group>'


@dataclass(frozen=True, slots=True)
class Bench:
    """Turns of the chart builder, and the provider that it talks to."""

    served: Served
    double: ProviderDouble

    async def ended(
        self, *steps: Step, tables: Mapping[str, bytes] | None = None, words: str = "a chart"
    ) -> tuple[TurnAddress, Any]:
        self.double.script(*steps)
        harness = self.served.harness
        conversation_id = await harness.conversation(AGENT)
        for name, content in (tables or {"sales.csv": CSV}).items():
            async with harness.db.transaction("local") as tx:
                file = files.NewFile.of(new_id(), name, "text/csv", content)
                await files.keep(tx, conversation_id, harness.people["requester"].user_id, [file])
        address = await self.served.begin(Line(words), agent_id=AGENT, conversation_id=conversation_id)
        return address, await self.served.until(address, *RESTING, seconds=90)

    async def answered(self, address: TurnAddress, kind: str, **payload: Any) -> Any:
        harness, row = self.served.harness, await self.served.until(address, TurnStatus.AWAITING_ANSWER)
        await self.served.waits(address)
        async with harness.db.transaction("local") as tx:
            user_id, (request_id,) = harness.people["requester"].user_id, row["waiting"]["ids"]
            _, note = await questions.answer_question(tx, address.turn_id, request_id, user_id, kind, payload)
        assert await harness.deps.doorbell.deliver_soon(note)
        return await self.served.until(address, TurnStatus.COMPLETED, TurnStatus.FAILED, seconds=90)

    def requests(self, address: TurnAddress) -> list[Any]:
        return [seen for seen in self.double.requests if seen.idempotency_key.startswith(address.turn_id)]

    async def labels(self, address: TurnAddress) -> list[str]:
        stages = "SELECT stage FROM model_calls WHERE turn_id = $1 ORDER BY length(call_id), call_id"
        return [row["stage"] for row in await self.served.harness.rows(stages, address.turn_id)]


@pytest.fixture(scope="module")
async def bench(harness: Harness, temporal: Client) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        double = stack.enter_context(ProviderDouble())
        app = load_app(SHIPPED / "charts")
        (shipped,) = publish(app, [])
        params = {"api_base": double.api_base, "api_key_secret": "model_key"}
        changed = {"id": AGENT, "model": "openai/gpt-4o-mini", "model_params": params, "script": None}
        definition = shipped.definition.model_copy(update=changed)
        version = digest_of(definition.model_dump(mode="json"))
        agent = shipped.model_copy(update={"definition": definition, "version": version})
        await publish_app(harness.owner_url, [("charts", agent)])
        models = Models({"model_key": "sk-of-the-test"}.get)
        toolbox = Toolbox([(AGENT, tool) for tool in app.tools.values()], lambda name: None, harness.deps.toolbox.http)
        at = replace(harness, deps=replace(harness.deps, models=models, toolbox=toolbox))
        provider: Any = await models.provider(agent)
        stack.push_async_callback(provider.aclose)
        workers = await serve(stack, at, ALL_KINDS)
        yield Bench(Served(at, temporal, workers), double)


def said(**value: object) -> Step:
    return Step(text=json.dumps(value))


def plan(xml: str) -> Step:
    given = {"transformation": "sum" if xml else "", "xml": xml, "visualization": "sales by region"}
    return said(early_exit=False, question="", options=[], suggestions=[], **given)


CLASSIFIED = said(kind="visualization", excludes=False)
SPECIFIED = said(xml='<chart><show column="region"/><show column="sales"/></chart>')
REST = (said(marks=[]), Step(text="Sales by region are drawn."))


async def test_a_plan_that_does_not_fit_twice_and_then_does_ends_in_a_picture(bench: Bench) -> None:
    address, row = await bench.ended(
        CLASSIFIED, plan("<plan><bogus/></plan>"), plan("<plan><group/></plan>"), plan(f"<plan>{GROUP}</plan>"),
        SPECIFIED, *REST,
    )  # fmt: skip
    assert row["status"] == "completed" and row["output"]["pictures"], row["problem"]
    assert row["answer"] == "Sales by region are drawn."
    assert await bench.labels(address) == ["classify", "plan", "plan", "plan", "specify", "marks", "feedback"]
    requests = bench.requests(address)
    assert len(requests) == row["attempts"] == 7
    assert "bogus" in json.dumps(requests[2].body["messages"]), "the fault is told, with its place"
    first: Any = requests[0].body
    assert first["response_format"]["json_schema"]["name"] == "classify" and first["temperature"] == 0
    assert first["response_format"]["json_schema"]["strict"] is True and "tools" not in first
    assert "sales.csv" in json.dumps(first["messages"]) and "North" not in json.dumps(first["messages"])


async def test_a_table_that_stays_at_home_is_planned_and_specified_by_a_model_that_sees_no_row(bench: Bench) -> None:
    bench.double.script(CLASSIFIED, plan(f"<plan>{GROUP}</plan>"), SPECIFIED, REST[0])
    harness, kept = bench.served.harness, ClientTable("sales", read_csv(CSV))
    address, started = await harness.start(Line("a chart"), agent_id=AGENT)
    metadata = {"client_table": kept.described()}
    await harness.write("UPDATE turns SET metadata = $2 WHERE id = $1", address.turn_id, metadata)
    assert started.note is not None and await harness.deps.doorbell.deliver_soon(started.note)
    row = await bench.answered(address, "client_run", **kept.carry_out(f"<plan>{GROUP}</plan>"))
    assert row["status"] == "completed", row["problem"]
    drawn = kept.drawn(row["output"]["specification"])
    assert drawn["data"]["values"] == [{"region": "North", "sales": 30}, {"region": "South", "sales": 10}]
    assert await bench.labels(address) == ["classify", "plan", "specify", "marks"]
    sent = json.dumps([seen.body for seen in bench.requests(address)])
    assert "region" in sent and "North" not in sent


async def test_words_in_place_of_an_object_are_asked_again_by_a_function_that_must_be_called(bench: Bench) -> None:
    called = Step(calls=(Call(name="classify", arguments={"kind": "question", "excludes": False}),))
    address, row = await bench.ended(Step(text="It is a chart, I think."), called, Step(text="Ask me for a chart."))
    assert (row["status"], row["answer"]) == ("completed", "Ask me for a chart.")
    second: Any = bench.requests(address)[1].body
    assert second["tool_choice"] == {"type": "function", "function": {"name": "classify"}}
    assert "response_format" not in second
    assert await bench.labels(address) == ["classify", "classify", "feedback"]


async def test_a_plan_joins_the_table_that_was_uploaded_before(bench: Bench) -> None:
    join = '<input name="sales.csv"/><join table="names.csv"><on left="region" right="key"/></join>'
    grouped = '<group><by column="name"/><aggregate column="sales" function="sum" as="sales"/></group>'
    shown = said(xml='<chart><show column="name"/><show column="sales"/></chart>')
    address, row = await bench.ended(
        CLASSIFIED, plan(f"<plan>{join}{grouped}</plan>"), shown, *REST,
        tables={"sales.csv": CSV, "names.csv": b"key,name\nNorth,Upland\nSouth,Lowland\n"},
    )  # fmt: skip
    assert row["status"] == "completed" and row["output"]["pictures"], row["output"]
    planning = json.dumps(bench.requests(address)[1].body["messages"])
    assert "Table names.csv, 2 rows" in planning and "Another table sales.csv, 2 rows" in planning
    async with bench.served.harness.db.transaction("local") as tx:
        picture = row["output"]["pictures"]["specification"].rpartition("/")[2]
        drawn = await files.read_in(tx, address.conversation_id, picture)
    assert drawn is not None
    values = json.loads(drawn.content)["data"]["values"]
    assert values == [{"name": "Upland", "sales": 30}, {"name": "Lowland", "sales": 10}]


async def test_the_first_model_to_answer_is_used_or_none_starts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from perdure.activities.providers.litellm_provider import LiteLLMProvider  # 5 s, which the bench has spent

    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-test")
    monkeypatch.setenv("OPENAI_BASE_URL", bench.double.api_base)
    provider = LiteLLMProvider(Settings(_env_file=None).outbound_to_providers())
    try:
        bench.double.script(Step(status=401, code="invalid_api_key"), Step(text="ready"))
        names = ("openai/gpt-4o", "openai/gpt-4o-mini", "openai/o3")
        assert await first_that_answers(names, provider, {}) == "openai/gpt-4o-mini"
        bench.double.script(Step(status=401, code="invalid_api_key", times=None))
        with pytest.raises(SystemExit) as ended:
            await first_that_answers(names, provider, {})
        assert all(name in str(ended.value) for name in names) and "model_auth" in str(ended.value)
    finally:
        await provider.aclose()


def test_the_servers_model_plays_every_script_and_no_agents_own_model() -> None:
    app = load_app(SHIPPED / "charts")
    (played,) = publish(played_by(app, "openai/gpt-4o", {"api_key_secret": "model"}), [])
    assert (played.definition.model, played.definition.script) == ("openai/gpt-4o", None)
    assert played.definition.model_params == {"api_key_secret": "model"}
    assert played.version != publish(app, [])[0].version
    own = replace(app, agents=tuple(agent.model_copy(update={"model": "openai/o3"}) for agent in app.agents))
    assert played_by(own, "openai/gpt-4o", {}) == own
