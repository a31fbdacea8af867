"""A keyed effect, killed while the model streams, during the pause, and between the effect and its record."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TextIO

from perdure.cli.chat import LiveText
from perdure.cli.demo.stage import WORKERS, Payments, Stage, StageFailed
from perdure.client import AsyncClient, Event
from perdure.local.config import own_environ
from perdure.schemas.turns import Message, Turn


@dataclass(frozen=True, slots=True)
class Claim:
    """One sentence that must be true, with its evidence."""

    text: str
    held: bool
    evidence: str
    """The source that was checked, and the value found there."""


def equal(text: str, found: object, wanted: object, where: str) -> Claim:
    """Returns a claim that holds if `found` equals `wanted`."""
    shown = f"{found}" if found == wanted else f"{found}, not {wanted}"
    return Claim(text, found == wanted, f"{where}: {shown}")


def attempts(events: Sequence[Event], kind: str) -> dict[str, int]:
    """Counts the events of this kind by call."""
    counted: dict[str, int] = {}
    for event in events:
        if event.kind == kind:
            counted[event.call_id] = counted.get(event.call_id, 0) + 1
    return counted


def paid_once(whose: str, events: Sequence[Event]) -> Claim:
    """Returns the claim that each model call has one settled result and was not sent to the model after it."""
    begun = attempts(events, "generation.start")
    settled = attempts(events, "generation.complete")
    over: set[str] = set()
    late = False
    for event in events:
        if event.kind == "generation.complete":
            over.add(event.call_id)
        late |= event.kind == "generation.start" and event.call_id in over
    evidence = ", ".join(f"{call_id} asked {begun[call_id]}x, settled {settled.get(call_id, 0)}x" for call_id in begun)
    held = bool(begun) and all(settled.get(call_id) == 1 for call_id in begun) and not late
    return Claim(f"{whose} model calls: none repeated after it settled", held, f"event log: {evidence}")


def one_transcript(messages: Sequence[Message], streamed: Mapping[str, str], roles: Sequence[str]) -> Claim:
    """Returns the claim that the transcript has each message once, and that the live reader received the same text."""
    found = [message.role for message in messages]
    contents = [message.content for message in messages if message.role == "assistant"]
    same = contents == [text for text in streamed.values() if text]
    held = found == list(roles) and same
    evidence = " → ".join(found) + (
        ", the live reader received the same text" if same else ", the live reader received a different text"
    )
    return Claim("one transcript, no duplicated text", held, f"messages: {evidence}")


_MARGIN = " " * 11
_BOLD, _DIM, _RED, _GREEN = "1", "2", "31", "32"


class Narrator:
    """Writes the output of the whole demo. It has numbered steps with times, the streamed text, and each kill with its
    pids."""

    def __init__(self, stream: TextIO) -> None:
        self._live = LiveText(stream, terminal=False)
        self._stream = stream
        self._coloured = stream.isatty() and not own_environ().get("NO_COLOR")
        self._began = time.monotonic()
        self._steps = 0
        self._speaks = False

    def title(self, text: str) -> None:
        """Writes the first line."""
        self._line(self._ink(text, _BOLD))

    def step(self, text: str) -> None:
        """Begins a new step."""
        self._steps += 1
        self._line("")
        self._line(self._ink(f"{self._time()} {self._steps}. {text}", _BOLD))

    def say(self, text: str) -> None:
        """Writes a sentence."""
        self._line(_MARGIN + text)

    def now(self, text: str) -> None:
        """Writes an event with its time."""
        self._line(f"{self._ink(self._time(), _DIM)} {text}")

    def killed(self, pids: Mapping[str, int], when: str) -> None:
        """Writes that these processes have just been killed."""
        named = ", ".join(f"{pid} ({role})" for role, pid in pids.items())
        self.now(self._ink(f"kill -9 {named}: {when}", _RED))

    def back(self, pids: Mapping[str, int]) -> None:
        """Writes that the supervisor has restarted the processes."""
        self.now("restarted with new pids: " + ", ".join(f"{pid} ({role})" for role, pid in pids.items()))

    def hear(self, text: str) -> None:
        """Writes streamed text."""
        if not self._speaks:
            self._stream.write(_MARGIN + self._ink("┃ ", _DIM))
            self._speaks = True
        self._live.write(text)

    def quote(self, text: str) -> None:
        """Writes the output of a command."""
        for line in text.splitlines():
            self._line(_MARGIN + self._ink("| ", _DIM) + line)

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def claims(self, claims: Sequence[Claim]) -> None:
        """Writes the table of claims at the end."""
        width = max(len(claim.text) for claim in claims)
        for claim in claims:
            mark = self._ink("held  ", _GREEN) if claim.held else self._ink("FAILED", _RED)
            self._line(f"  {mark}  {claim.text:<{width}}   {self._ink(claim.evidence, _DIM)}")
        self._line("")

    def failed(self, text: str, logs: str) -> None:
        """Writes the failure and the folder of the logs."""
        self._line("")
        self._line(self._ink(text, _RED))
        if logs:
            self._line(f"The logs are in {logs}")

    def _line(self, text: str) -> None:
        if self._speaks:
            self._live.end()
            self._speaks = False
        self._stream.write(text + "\n")
        self._stream.flush()

    def _time(self) -> str:
        return f"[{self.seconds:6.1f} s]"

    def _ink(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._coloured else text


_EVENT_SECONDS = 90.0
"""Recovery takes 6 to 8 s. A machine that needs this long for an event cannot show it."""


class Watched:
    """A turn and all events that its reader has received. The stream can be stopped at any event and resumed after
    it."""

    def __init__(self, client: AsyncClient, narrator: Narrator, turn: Turn) -> None:
        self._client = client
        self._narrator = narrator
        self.turn_id = turn.turn_id
        self.conversation_id = turn.conversation_id
        self.events: list[Event] = []
        self.heard: dict[str, str] = {}
        """The text of each model call as the reader sees it, after resets."""

    async def until(self, kind: str, on_event: Callable[[Event], Awaitable[None]] | None = None) -> Event:
        """Continues reading up to an event of this kind.

        Raises StageFailed if the turn ends first, or if no event arrives.
        """
        try:
            async with asyncio.timeout(_EVENT_SECONDS):
                found = await self._read(kind, on_event)
        except TimeoutError:
            turn = await self._client.turns.get(self.turn_id)
            raise StageFailed(f"no {kind} within {_EVENT_SECONDS:.0f} s; the turn is {turn.status}") from None
        if found is None:
            turn = await self._client.turns.get(self.turn_id)
            raise StageFailed(f"the turn ended as {turn.status} before any {kind}: {turn.error or turn.answer}")
        return found

    async def _read(self, kind: str, on_event: Callable[[Event], Awaitable[None]] | None) -> Event | None:
        last_id = next((event.id for event in reversed(self.events) if event.id), None)
        async with aclosing(self._client.turns.events(self.turn_id, after=last_id)) as stream:
            async for event in stream:
                self.events.append(event)
                self._tell(event)
                if on_event is not None:
                    await on_event(event)
                if event.kind == kind:
                    return event
        return None

    def _tell(self, event: Event) -> None:
        if event.kind == "token":
            text = str(event.data.get("text", ""))
            self.heard[event.call_id] = self.heard.get(event.call_id, "") + text
            self._narrator.hear(text)
        elif event.kind == "reset":
            self.heard[event.call_id] = ""
            self._narrator.now("reset: the partial text is void; the reader discards it and receives the text once:")
        elif event.kind == "tool.awaiting_approval":
            self._narrator.now(f"{event.data.get('tool')} waits for an approval; nothing was sent")
        elif event.kind == "tool.approved":
            self._narrator.now(f"approved by {event.data.get('by')}")
        elif event.kind == "tool.executing":
            self._narrator.now(f"{event.data.get('tool')} runs, attempt {event.data.get('attempt')}")
        elif event.kind == "tool.result":
            self._narrator.now(f"{event.data.get('tool')} is recorded as done")
        elif event.kind == "tool.error":
            self._narrator.now(f"{event.data.get('tool')}: {event.data.get('code') or event.data.get('message')}")


_AGENT, _ORDER = "refunds", "1042"
_WORDS_BEFORE_THE_KILL = 4


async def refund(stage: Stage, narrator: Narrator, client: AsyncClient, payments: Payments) -> list[Claim]:
    """Runs this part of the demo and returns its claims."""
    narrator.step("A turn starts over REST; its workers are killed while the model streams")
    watched = await _begin(stage, narrator, client)
    await _kill_while_it_speaks(stage, narrator, watched)

    narrator.step("All workers are killed while the turn waits for an approval")
    killed = stage.kill(WORKERS)
    narrator.killed(killed, "no process is left that holds this turn in memory")
    turn = await client.turns.get(watched.turn_id)
    narrator.say(f"The turn is {turn.status}: its state is in Postgres and Temporal, not in a worker.")
    paused_as = turn.status
    narrator.back(await stage.back(killed))

    narrator.step("A reviewer reviews the exact call and approves it")
    await payments.hold_answers("refund")
    narrator.say(f"The payments service has {await payments.count(_ORDER, 'refund')} refunds of order {_ORDER}.")
    approval_id = turn.waiting_for.ids[0] if turn.waiting_for else ""
    narrator.now(f"$ perdure approvals approve {approval_id}")
    narrator.quote(await stage.perdure("approvals", "approve", approval_id))

    narrator.step("The worker is killed after the effect and before its record")
    await watched.until("tool.executing")
    await payments.until_made(_ORDER, "refund")
    narrator.say(
        "The refund is stored by the payments service. Its answer is delayed, so Perdure does not know about it yet."
    )
    killed = stage.kill(["worker-turns"])
    narrator.killed(killed, "executed by the target, not recorded by Perdure")
    await payments.let_go()
    narrator.say(
        "After 5 s without a heartbeat, Temporal gives the call to another worker, which sends the same "
        "idempotency key."
    )
    await watched.until("done")
    return await _refund_claims(client, payments, watched, approval_id, paused_as)


async def _begin(stage: Stage, narrator: Narrator, client: AsyncClient) -> Watched:
    conversation = await client.conversations.create(_AGENT)
    message = f"Refund order {_ORDER}"
    turn = await client.turns.start(conversation.id, message)
    narrator.now(f'POST /v1/conversations/{conversation.id}/turns {{"message": "{message}"}} → {turn.status}')
    narrator.say(f"Watch this run: {stage.link(turn.turn_id)}")
    return Watched(client, narrator, turn)


async def _kill_while_it_speaks(stage: Stage, narrator: Narrator, watched: Watched) -> None:
    """Kills both workers with SIGKILL in the middle of the first sentence, then waits for the pause."""
    killed: dict[str, int] = {}

    async def kill_once(event: Event) -> None:
        if not killed and len(watched.heard.get(event.call_id, "").split()) >= _WORDS_BEFORE_THE_KILL:
            killed.update(stage.kill(["worker-llm", "worker-turns"]))
            narrator.killed(killed, "in the middle of a sentence")

    await watched.until("tool.awaiting_approval", kill_once)
    narrator.back(await stage.back(killed))


async def _refund_claims(
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
        equal("the turn has completed", turn.status, "completed", "GET /v1/turns"),
        Claim("the answer reports the refund", "refunded" in (turn.answer or ""), f"answer: {turn.answer}"),
        equal(f"refunds of order {_ORDER}", await payments.count(_ORDER, "refund"), 1, "payments service's own ledger"),
        Claim(
            "requested twice with one key",
            (len(sent), len(keys)) == (2, 1) and None not in keys,
            f"payments service: {len(sent)} requests, {len(keys)} key",
        ),
        equal("killed between effect and record", sum(ran.values()), 2, "event log, attempts of the call"),
        equal("killed while the model streamed", spoken.get("m1"), 2, "event log, attempts of the first model call"),
        equal("stayed paused while all workers were down", paused_as, "awaiting_approval", "GET /v1/turns"),
        equal(
            "the executed arguments are the approved ones",
            approval.args,
            {"order": _ORDER},
            "GET /v1/approvals, arguments",
        ),
        paid_once("the refund's", watched.events),
        one_transcript(messages, watched.heard, ("user", "assistant", "tool", "assistant")),
    ]


async def send_note(stage: Stage, narrator: Narrator, client: AsyncClient, payments: Payments) -> list[Claim]:
    """Runs this part of the demo and returns its claims. The opaque effect is killed at the same point and never sent
    twice, so a person records its outcome."""
    narrator.step("The same crash at a target without idempotency keys: a goodwill note")
    conversation = await client.conversations.create(_AGENT)
    message = f"Send a goodwill note for order {_ORDER}"
    turn = await client.turns.start(conversation.id, message)
    narrator.now(f'POST /v1/conversations/{conversation.id}/turns {{"message": "{message}"}} → {turn.status}')
    narrator.say(f"Watch this run: {stage.link(turn.turn_id)}")
    watched = Watched(client, narrator, turn)
    request = await watched.until("tool.awaiting_approval")
    await payments.hold_answers("note")
    approval_id = str(request.data["approval_id"])
    narrator.now(f"$ perdure approvals approve {approval_id}")
    narrator.quote(await stage.perdure("approvals", "approve", approval_id))
    await watched.until("tool.executing")
    await payments.until_made(_ORDER, "note")
    killed = stage.kill(["worker-turns"])
    narrator.killed(killed, "the note is sent, and Perdure does not know it")
    await payments.let_go()
    unknown = await watched.until("tool.error")
    key = str(unknown.data.get("effect"))

    narrator.step("Perdure does not guess: a person checks the target and settles the effect")
    paused = await client.turns.wait(watched.turn_id, timeout_seconds=30)
    narrator.say(f"The turn is {paused.status} again, because of the effect. The note is not sent a second time.")
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
    return await _note_claims(client, payments, watched, unknown.data.get("code"))


async def _note_claims(client: AsyncClient, payments: Payments, watched: Watched, code: object) -> list[Claim]:
    turn = await client.turns.get(watched.turn_id)
    sent = await payments.requests("/notes")
    return [
        equal("the note's turn has completed", turn.status, "completed", "GET /v1/turns"),
        equal("the unknown outcome was not guessed", code, "outcome_unknown", "event log"),
        Claim("the answer names who settled the effect", "reviewer" in (turn.answer or ""), f"answer: {turn.answer}"),
        equal(f"notes for order {_ORDER}", await payments.count(_ORDER, "note"), 1, "payments service's own ledger"),
        equal("sent once, never repeated", len(sent), 1, "payments service, requests received"),
        paid_once("the note's", watched.events),
    ]
