"""A keyed effect, killed while the model streams, during the pause, and between the effect and its record."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TextIO

from perdure.cli.chat import LiveText
from perdure.cli.demo.demo_stack import WORKERS, DemoFailed, DemoStack, Payments
from perdure.client import AsyncClient, Event
from perdure.local.config import own_environ
from perdure.schemas.turns import Message, Turn

_MARGIN = " " * 11
_BOLD, _DIM, _RED, _GREEN = "1", "2", "31", "32"
_EVENT_SECONDS = 90.0
"""Recovery takes 6 to 8 s. A machine that needs this long for an event cannot show it."""
_AGENT, _ORDER = "refunds", "1042"
_WORDS_BEFORE_THE_KILL = 4


@dataclass(frozen=True, slots=True)
class Check:
    """One sentence that must be true, with its evidence."""

    text: str
    has_passed: bool
    evidence: str
    """The source that was checked, and the value found there."""


def check_equal(text: str, actual: object, expected: object, source: str) -> Check:
    """Returns a claim that holds if `actual` equals `expected`."""
    shown = f"{actual}" if actual == expected else f"{actual}, not {expected}"
    return Check(text, actual == expected, f"{source}: {shown}")


def count_by_call(events: Sequence[Event], kind: str) -> dict[str, int]:
    """Counts the events of this kind by call."""
    counts: dict[str, int] = {}
    for event in events:
        if event.kind == kind:
            counts[event.call_id] = counts.get(event.call_id, 0) + 1
    return counts


def check_calls_settled_once(subject: str, events: Sequence[Event]) -> Check:
    """Returns the claim that each model call has one settled result and was not sent to the model after it."""
    started = count_by_call(events, "generation.start")
    settled = count_by_call(events, "generation.complete")
    settled_calls: set[str] = set()
    started_again = False
    for event in events:
        if event.kind == "generation.complete":
            settled_calls.add(event.call_id)
        started_again |= event.kind == "generation.start" and event.call_id in settled_calls
    evidence = ", ".join(
        f"{call_id} asked {started[call_id]}x, settled {settled.get(call_id, 0)}x" for call_id in started
    )
    has_passed = bool(started) and all(settled.get(call_id) == 1 for call_id in started) and not started_again
    return Check(f"{subject} model calls: none repeated after it settled", has_passed, f"event log: {evidence}")


def check_transcript(messages: Sequence[Message], streamed: Mapping[str, str], roles: Sequence[str]) -> Check:
    """Returns the claim that the transcript has each message once, and that the live reader received the same text."""
    found_roles = [message.role for message in messages]
    contents = [message.content for message in messages if message.role == "assistant"]
    is_same_text = contents == [text for text in streamed.values() if text]
    has_passed = found_roles == list(roles) and is_same_text
    evidence = " → ".join(found_roles) + (
        ", the live reader received the same text" if is_same_text else ", the live reader received a different text"
    )
    return Check("one transcript, no duplicated text", has_passed, f"messages: {evidence}")


class Narrator:
    """Writes the output of the whole demo. It has numbered steps with times, the streamed text, and each kill with its
    pids."""

    def __init__(self, stream: TextIO) -> None:
        self._live = LiveText(stream, terminal=False)
        self._stream = stream
        self._is_colored = stream.isatty() and not own_environ().get("NO_COLOR")
        self._started_at = time.monotonic()
        self._steps = 0
        self._is_streaming = False

    def title(self, text: str) -> None:
        """Writes the first line."""
        self._line(self._styled(text, _BOLD))

    def step(self, text: str) -> None:
        """Begins a new step."""
        self._steps += 1
        self._line("")
        self._line(self._styled(f"{self._time()} {self._steps}. {text}", _BOLD))

    def say(self, text: str) -> None:
        """Writes a sentence."""
        self._line(_MARGIN + text)

    def now(self, text: str) -> None:
        """Writes an event with its time."""
        self._line(f"{self._styled(self._time(), _DIM)} {text}")

    def killed(self, pids: Mapping[str, int], when: str) -> None:
        """Writes that these processes have just been killed."""
        processes = ", ".join(f"{pid} ({role})" for role, pid in pids.items())
        self.now(self._styled(f"kill -9 {processes}: {when}", _RED))

    def restarted(self, pids: Mapping[str, int]) -> None:
        """Writes that the supervisor has restarted the processes."""
        self.now("restarted with new pids: " + ", ".join(f"{pid} ({role})" for role, pid in pids.items()))

    def stream_text(self, text: str) -> None:
        """Writes streamed text."""
        if not self._is_streaming:
            self._stream.write(_MARGIN + self._styled("┃ ", _DIM))
            self._is_streaming = True
        self._live.write(text)

    def quote(self, text: str) -> None:
        """Writes the output of a command."""
        for line in text.splitlines():
            self._line(_MARGIN + self._styled("| ", _DIM) + line)

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._started_at

    def checks(self, checks: Sequence[Check]) -> None:
        """Writes the table of claims at the end."""
        width = max(len(check.text) for check in checks)
        for check in checks:
            mark = self._styled("held  ", _GREEN) if check.has_passed else self._styled("FAILED", _RED)
            self._line(f"  {mark}  {check.text:<{width}}   {self._styled(check.evidence, _DIM)}")
        self._line("")

    def failed(self, text: str, logs: str) -> None:
        """Writes the failure and the folder of the logs."""
        self._line("")
        self._line(self._styled(text, _RED))
        if logs:
            self._line(f"The logs are in {logs}")

    def _line(self, text: str) -> None:
        if self._is_streaming:
            self._live.end()
            self._is_streaming = False
        self._stream.write(text + "\n")
        self._stream.flush()

    def _time(self) -> str:
        return f"[{self.seconds:6.1f} s]"

    def _styled(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._is_colored else text


class WatchedTurn:
    """A turn and all events that its reader has received. The stream can be stopped at any event and resumed after
    it."""

    def __init__(self, client: AsyncClient, narrator: Narrator, turn: Turn) -> None:
        self._client = client
        self._narrator = narrator
        self.turn_id = turn.turn_id
        self.conversation_id = turn.conversation_id
        self.events: list[Event] = []
        self.texts: dict[str, str] = {}
        """The text of each model call as the reader sees it, after resets."""

    async def wait_until(self, kind: str, on_event: Callable[[Event], Awaitable[None]] | None = None) -> Event:
        """Continues reading up to an event of this kind.

        Raises: DemoFailed if the turn ends first, or if no event arrives.
        """
        try:
            async with asyncio.timeout(_EVENT_SECONDS):
                event = await self._read(kind, on_event)
        except TimeoutError:
            turn = await self._client.turns.get(self.turn_id)
            raise DemoFailed(f"no {kind} within {_EVENT_SECONDS:.0f} s; the turn is {turn.status}") from None
        if event is None:
            turn = await self._client.turns.get(self.turn_id)
            raise DemoFailed(f"the turn ended as {turn.status} before any {kind}: {turn.error or turn.answer}")
        return event

    async def _read(self, kind: str, on_event: Callable[[Event], Awaitable[None]] | None) -> Event | None:
        last_id = next((event.id for event in reversed(self.events) if event.id), None)
        async with aclosing(self._client.turns.events(self.turn_id, after=last_id)) as stream:
            async for event in stream:
                self.events.append(event)
                self._narrate(event)
                if on_event is not None:
                    await on_event(event)
                if event.kind == kind:
                    return event
        return None

    def _narrate(self, event: Event) -> None:
        if event.kind == "token":
            text = str(event.data.get("text", ""))
            self.texts[event.call_id] = self.texts.get(event.call_id, "") + text
            self._narrator.stream_text(text)
        elif event.kind == "reset":
            self.texts[event.call_id] = ""
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


async def refund(stack: DemoStack, narrator: Narrator, client: AsyncClient, payments: Payments) -> list[Check]:
    """Runs this part of the demo and returns its claims."""
    narrator.step("A turn starts over REST; its workers are killed while the model streams")
    watched = await _start_refund_turn(stack, narrator, client)
    await _kill_while_streaming(stack, narrator, watched)

    narrator.step("All workers are killed while the turn waits for an approval")
    killed = stack.kill(WORKERS)
    narrator.killed(killed, "no process is left that holds this turn in memory")
    turn = await client.turns.get(watched.turn_id)
    narrator.say(f"The turn is {turn.status}: its state is in Postgres and Temporal, not in a worker.")
    paused_status = turn.status
    narrator.restarted(await stack.wait_until_restarted(killed))

    narrator.step("A reviewer reviews the exact call and approves it")
    await payments.hold_answers("refund")
    narrator.say(f"The payments service has {await payments.count(_ORDER, 'refund')} refunds of order {_ORDER}.")
    approval_id = turn.waiting_for.ids[0] if turn.waiting_for else ""
    narrator.now(f"$ perdure approvals approve {approval_id}")
    narrator.quote(await stack.perdure("approvals", "approve", approval_id))

    narrator.step("The worker is killed after the effect and before its record")
    await watched.wait_until("tool.executing")
    await payments.wait_for_effect(_ORDER, "refund")
    narrator.say(
        "The refund is stored by the payments service. Its answer is delayed, so Perdure does not know about it yet."
    )
    killed = stack.kill(["worker-turns"])
    narrator.killed(killed, "executed by the target, not recorded by Perdure")
    await payments.release_answers()
    narrator.say(
        "After 5 s without a heartbeat, Temporal gives the call to another worker, which sends the same "
        "idempotency key."
    )
    await watched.wait_until("done")
    return await _refund_checks(client, payments, watched, approval_id, paused_status)


async def _start_refund_turn(stack: DemoStack, narrator: Narrator, client: AsyncClient) -> WatchedTurn:
    conversation = await client.conversations.create(_AGENT)
    message = f"Refund order {_ORDER}"
    turn = await client.turns.start(conversation.id, message)
    narrator.now(f'POST /v1/conversations/{conversation.id}/turns {{"message": "{message}"}} → {turn.status}')
    narrator.say(f"Watch this run: {stack.link(turn.turn_id)}")
    return WatchedTurn(client, narrator, turn)


async def _kill_while_streaming(stack: DemoStack, narrator: Narrator, watched: WatchedTurn) -> None:
    """Kills both workers with SIGKILL in the middle of the first sentence, then waits for the pause."""
    killed: dict[str, int] = {}

    async def kill_once(event: Event) -> None:
        if not killed and len(watched.texts.get(event.call_id, "").split()) >= _WORDS_BEFORE_THE_KILL:
            killed.update(stack.kill(["worker-llm", "worker-turns"]))
            narrator.killed(killed, "in the middle of a sentence")

    await watched.wait_until("tool.awaiting_approval", kill_once)
    narrator.restarted(await stack.wait_until_restarted(killed))


async def _refund_checks(
    client: AsyncClient, payments: Payments, watched: WatchedTurn, approval_id: str, paused_status: str
) -> list[Check]:
    turn = await client.turns.get(watched.turn_id)
    messages = (await client.conversations.messages(watched.conversation_id)).items
    approval = await client.approvals.get(approval_id)
    requests = await payments.requests("/refunds")
    keys = {request["key"] for request in requests}
    model_attempts = count_by_call(watched.events, "generation.start")
    tool_attempts = count_by_call(watched.events, "tool.executing")
    return [
        check_equal("the turn has completed", turn.status, "completed", "GET /v1/turns"),
        Check("the answer reports the refund", "refunded" in (turn.answer or ""), f"answer: {turn.answer}"),
        check_equal(
            f"refunds of order {_ORDER}", await payments.count(_ORDER, "refund"), 1, "payments service's own ledger"
        ),
        Check(
            "requested twice with one key",
            (len(requests), len(keys)) == (2, 1) and None not in keys,
            f"payments service: {len(requests)} requests, {len(keys)} key",
        ),
        check_equal(
            "killed between effect and record", sum(tool_attempts.values()), 2, "event log, attempts of the call"
        ),
        check_equal(
            "killed while the model streamed",
            model_attempts.get("m1"),
            2,
            "event log, attempts of the first model call",
        ),
        check_equal("stayed paused while all workers were down", paused_status, "awaiting_approval", "GET /v1/turns"),
        check_equal(
            "the executed arguments are the approved ones",
            approval.args,
            {"order": _ORDER, "reason": ""},
            "GET /v1/approvals, arguments",
        ),
        check_calls_settled_once("the refund's", watched.events),
        check_transcript(messages, watched.texts, ("user", "assistant", "tool", "assistant")),
    ]


async def send_note(stack: DemoStack, narrator: Narrator, client: AsyncClient, payments: Payments) -> list[Check]:
    """Runs this part of the demo and returns its claims. The opaque effect is killed at the same point and never sent
    twice, so a person records its outcome."""
    narrator.step("The same crash at a target without idempotency keys: a goodwill note")
    conversation = await client.conversations.create(_AGENT)
    message = f"Send a goodwill note for order {_ORDER}"
    turn = await client.turns.start(conversation.id, message)
    narrator.now(f'POST /v1/conversations/{conversation.id}/turns {{"message": "{message}"}} → {turn.status}')
    narrator.say(f"Watch this run: {stack.link(turn.turn_id)}")
    watched = WatchedTurn(client, narrator, turn)
    request = await watched.wait_until("tool.awaiting_approval")
    await payments.hold_answers("note")
    approval_id = str(request.data["approval_id"])
    narrator.now(f"$ perdure approvals approve {approval_id}")
    narrator.quote(await stack.perdure("approvals", "approve", approval_id))
    await watched.wait_until("tool.executing")
    await payments.wait_for_effect(_ORDER, "note")
    killed = stack.kill(["worker-turns"])
    narrator.killed(killed, "the note is sent, and Perdure does not know it")
    await payments.release_answers()
    error = await watched.wait_until("tool.error")
    key = str(error.data.get("effect"))

    narrator.step("Perdure does not guess: a person checks the target and settles the effect")
    paused = await client.turns.wait(watched.turn_id, timeout_seconds=30)
    narrator.say(f"The turn is {paused.status} again, because of the effect. The note is not sent a second time.")
    narrator.now("$ perdure effects list")
    listed = await stack.perdure("effects", "list")
    narrator.quote(listed)
    if key not in listed:
        raise DemoFailed(f"the effect {key} is not listed")
    effect = await payments.last_effect()
    comment = f"{effect} is in the payments ledger"
    narrator.now(f'$ perdure effects settle {key} happened --comment "{comment}"')
    narrator.quote(await stack.perdure("effects", "settle", key, "happened", "--comment", comment))
    await watched.wait_until("done")
    return await _note_checks(client, payments, watched, error.data.get("code"))


async def _note_checks(client: AsyncClient, payments: Payments, watched: WatchedTurn, code: object) -> list[Check]:
    turn = await client.turns.get(watched.turn_id)
    requests = await payments.requests("/notes")
    return [
        check_equal("the note's turn has completed", turn.status, "completed", "GET /v1/turns"),
        check_equal("the unknown outcome was not guessed", code, "outcome_unknown", "event log"),
        Check("the answer names who settled the effect", "reviewer" in (turn.answer or ""), f"answer: {turn.answer}"),
        check_equal(
            f"notes for order {_ORDER}", await payments.count(_ORDER, "note"), 1, "payments service's own ledger"
        ),
        check_equal("sent once, never repeated", len(requests), 1, "payments service, requests received"),
        check_calls_settled_once("the note's", watched.events),
    ]
