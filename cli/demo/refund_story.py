"""A keyed effect: killed while the model speaks, while the turn waits, and between the act and its record."""

from cli.demo.claims import Claim, attempts, equal, one_transcript, paid_once
from cli.demo.narrator import Narrator
from cli.demo.payments import Payments
from cli.demo.stage import WORKERS, Stage
from cli.demo.watching import Watched
from perdure.client import AsyncClient, Event

_AGENT, _ORDER = "refunds", "1042"
_WORDS_BEFORE_THE_KILL = 4


async def refund(stage: Stage, narrator: Narrator, client: AsyncClient, payments: Payments) -> list[Claim]:
    """Tell it, and say what must be true afterwards."""
    narrator.step("A turn over REST, and its workers are killed while the model speaks")
    watched = await _begin(stage, narrator, client)
    await _kill_while_it_speaks(stage, narrator, watched)

    narrator.step("All workers are killed while the turn waits for a person")
    killed = stage.kill(WORKERS)
    narrator.killed(killed, "nobody is left who knows of this turn")
    turn = await client.turns.get(watched.turn_id)
    narrator.say(f"The turn is {turn.status}: it lives in Postgres and Temporal, in no worker.")
    paused_as = turn.status
    narrator.back(await stage.back(killed))

    narrator.step("A reviewer looks at the exact call and approves it")
    await payments.hold_answers("refund")
    narrator.say(f"The payments service has {await payments.count(_ORDER, 'refund')} refunds of order {_ORDER}.")
    approval_id = turn.waiting_for.ids[0] if turn.waiting_for else ""
    narrator.now(f"$ perdure approvals approve {approval_id}")
    narrator.quote(await stage.perdure("approvals", "approve", approval_id))

    narrator.step("The worker is killed between the act and its record")
    await watched.until("tool.executing")
    await payments.until_made(_ORDER, "refund")
    narrator.say("The refund is on the payments service's disk. Its answer is held back, so nobody here knows.")
    killed = stage.kill(["worker-turns"])
    narrator.killed(killed, "done outside, not recorded inside")
    await payments.let_go()
    narrator.say("After 5 s without a heartbeat Temporal gives the call to the next worker, which sends the same key.")
    await watched.until("done")
    return await _claims(client, payments, watched, approval_id, paused_as)


async def _begin(stage: Stage, narrator: Narrator, client: AsyncClient) -> Watched:
    conversation = await client.conversations.create(_AGENT)
    message = f"Refund order {_ORDER}"
    turn = await client.turns.start(conversation.id, message)
    narrator.now(f'POST /v1/conversations/{conversation.id}/turns {{"message": "{message}"}} → {turn.status}')
    narrator.say(f"Watch this very run: {stage.link(turn.turn_id)}")
    return Watched(client, narrator, turn)


async def _kill_while_it_speaks(stage: Stage, narrator: Narrator, watched: Watched) -> None:
    """SIGKILL for both workers in the middle of the first sentence; then up to the pause."""
    killed: dict[str, int] = {}

    async def kill_once(event: Event) -> None:
        if not killed and len(watched.heard.get(event.call_id, "").split()) >= _WORDS_BEFORE_THE_KILL:
            killed.update(stage.kill(["worker-llm", "worker-turns"]))
            narrator.killed(killed, "in the middle of a sentence")

    await watched.until("tool.awaiting_approval", kill_once)
    narrator.back(await stage.back(killed))


async def _claims(
    client: AsyncClient, payments: Payments, watched: Watched, approval_id: str, paused_as: str
) -> list[Claim]:
    turn = await client.turns.get(watched.turn_id)
    messages = (await client.conversations.messages(watched.conversation_id)).items
    approval = await client.approvals.get(approval_id)
    sent = await payments.requests("/refunds")
    keys = {request["key"] for request in sent}
    spoken = attempts(watched.events, "generation.start")
    ran = attempts(watched.events, "tool.executing")
    return [
        equal("the turn has ended well", turn.status, "completed", "GET /v1/turns"),
        Claim("it says what happened", "refunded" in (turn.answer or ""), f"answer: {turn.answer}"),
        equal(f"refunds of order {_ORDER}", await payments.count(_ORDER, "refund"), 1, "payments service's own ledger"),
        Claim(
            "asked for twice, under one key",
            (len(sent), len(keys)) == (2, 1) and None not in keys,
            f"payments service: {len(sent)} requests, {len(keys)} key",
        ),
        equal("killed between act and record", sum(ran.values()), 2, "event log, attempts of the call"),
        equal("killed while the model spoke", spoken.get("m1"), 2, "event log, attempts of the first model call"),
        equal("paused through the death of every worker", paused_as, "awaiting_approval", "GET /v1/turns"),
        equal("what ran is what was approved", approval.args, {"order": _ORDER}, "GET /v1/approvals, arguments"),
        paid_once("the refund's", watched.events),
        one_transcript(messages, watched.heard, ("user", "assistant", "tool", "assistant")),
    ]
