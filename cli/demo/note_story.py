"""An opaque effect, killed at the same place: never sent twice, so a person says what became of it."""

from cli.demo.claims import Claim, equal, paid_once
from cli.demo.narrator import Narrator
from cli.demo.payments import Payments
from cli.demo.stage import Stage, StageFailed
from cli.demo.watching import Watched
from perdure.client import AsyncClient

_AGENT, _ORDER = "refunds", "1042"


async def send_note(stage: Stage, narrator: Narrator, client: AsyncClient, payments: Payments) -> list[Claim]:
    """Tell it, and say what must be true afterwards."""
    narrator.step("The same kill at a target that knows no keys: a goodwill note")
    conversation = await client.conversations.create(_AGENT)
    message = f"Send a goodwill note for order {_ORDER}"
    turn = await client.turns.start(conversation.id, message)
    narrator.now(f'POST /v1/conversations/{conversation.id}/turns {{"message": "{message}"}} → {turn.status}')
    narrator.say(f"Watch this very run: {stage.link(turn.turn_id)}")
    watched = Watched(client, narrator, turn)
    request = await watched.until("tool.awaiting_approval")
    await payments.hold_answers("note")
    approval_id = str(request.data["approval_id"])
    narrator.now(f"$ perdure approvals approve {approval_id}")
    narrator.quote(await stage.perdure("approvals", "approve", approval_id))
    await watched.until("tool.executing")
    await payments.until_made(_ORDER, "note")
    killed = stage.kill(["worker-turns"])
    narrator.killed(killed, "the note is out, and nobody here knows")
    await payments.let_go()
    unknown = await watched.until("tool.error")
    key = str(unknown.data.get("effect"))

    narrator.step("Nobody may guess: a person looks at the target and says what happened")
    paused = await client.turns.wait(watched.turn_id, timeout_seconds=30)
    narrator.say(f"The turn is {paused.status} again, for the effect. It is not sent a second time.")
    narrator.now("$ perdure effects list")
    listed = await stage.perdure("effects", "list")
    narrator.quote(listed)
    if key not in listed:
        raise StageFailed(f"the effect {key} is not listed")
    found = await payments.last_effect()
    comment = f"{found} is in the payments ledger"
    narrator.now(f'$ perdure effects settle {key} happened --comment "{comment}"')
    narrator.quote(await stage.perdure("effects", "settle", key, "happened", "--comment", comment))
    await watched.until("done")
    return await _claims(client, payments, watched, unknown.data.get("code"))


async def _claims(client: AsyncClient, payments: Payments, watched: Watched, code: object) -> list[Claim]:
    turn = await client.turns.get(watched.turn_id)
    sent = await payments.requests("/notes")
    return [
        equal("the note's turn has ended well", turn.status, "completed", "GET /v1/turns"),
        equal("the lost answer was not guessed", code, "outcome_unknown", "event log"),
        Claim("it says who settled it", "reviewer" in (turn.answer or ""), f"answer: {turn.answer}"),
        equal(f"notes for order {_ORDER}", await payments.count(_ORDER, "note"), 1, "payments service's own ledger"),
        equal("sent once, never again", len(sent), 1, "payments service, requests received"),
        paid_once("the note's", watched.events),
    ]
