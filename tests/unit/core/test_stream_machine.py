"""A machine that tries everything with the merged stream: any workers, any loss, any reader, cut off anywhere."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from pydantic import JsonValue

from perdure.core.events.stream import (
    CallKey,
    Cursor,
    Frame,
    LoggedEvent,
    OpenCall,
    ReaderState,
    TokenBatch,
    merge,
    parse_cursor,
    resumed,
    unknown_calls,
)
from tests.live_model import LiveModel

AT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Client:
    """What a person would see: text by call, put together from frames."""

    last_id: str | None = None
    seq: int = 0
    texts: dict[CallKey, str] = field(default_factory=dict)
    thoughts: dict[CallKey, str] = field(default_factory=dict)
    begun: dict[CallKey, int] = field(default_factory=dict)
    ended: set[CallKey] = field(default_factory=set)
    state: ReaderState | None = None


@dataclass
class Call:
    """A model call as its workers do it."""

    key: CallKey
    said: dict[int, str] = field(default_factory=dict)
    thought: dict[int, str] = field(default_factory=dict)
    stored: str | None = None
    over: bool = False

    @property
    def attempt(self) -> int:
        return max(self.said)


class StreamMachine(RuleBasedStateMachine):
    """Workers, losses and readers in any order; every reader ends with exactly the stored texts."""

    def __init__(self) -> None:
        super().__init__()
        self.live = LiveModel()
        self.log: list[LoggedEvent] = []
        self.turn = 1
        self.calls: dict[CallKey, Call] = {}
        self.clients = [Client(), Client()]

    def write(self, kind: str, key: CallKey, **data: JsonValue) -> None:
        self.log.append(LoggedEvent(len(self.log) + 1, key[0], kind, key[1] or None, data, AT))

    def open_calls(self) -> list[Call]:
        return [call for call in self.calls.values() if not call.over]

    # Workers

    @precondition(lambda self: len(self.open_calls()) < 2)
    @rule()
    def begin_call(self) -> None:
        key = (f"turn{self.turn}", f"m{len(self.calls)}")
        self.calls[key] = Call(key, {1: ""})
        self.write("generation.start", key, attempt=1)

    @precondition(lambda self: self.open_calls())
    @rule(pick=st.integers(0, 1), text=st.text("abc", min_size=1, max_size=3), lost=st.integers(0, 5))
    def speak(self, pick: int, text: str, lost: int) -> None:
        call = self.open_calls()[pick % len(self.open_calls())]
        self.say(call, call.attempt, text, arrives=lost != 0)

    @precondition(lambda self: self.calls)
    @rule(pick=st.integers(0, 9), attempt=st.integers(1, 3))
    def a_zombie_speaks(self, pick: int, attempt: int) -> None:
        calls = list(self.calls.values())
        call = calls[pick % len(calls)]
        if attempt < call.attempt:
            self.say(call, attempt, "z", arrives=True)

    @precondition(lambda self: self.open_calls())
    @rule(pick=st.integers(0, 1), count=st.integers(1, 3), lost=st.integers(0, 5))
    def think(self, pick: int, count: int, lost: int) -> None:
        call = self.open_calls()[pick % len(self.open_calls())]
        before = call.thought.get(call.attempt, "")
        # Each character of a call's reasoning is another one, so that one shown twice is seen.
        text = "".join(chr(0x4E00 + len(before) + place) for place in range(count))
        if lost:
            self.live.append(
                call.key, call.attempt, len(call.said[call.attempt]), text, thinking=True, thought=len(before)
            )
        call.thought[call.attempt] = before + text

    def say(self, call: Call, attempt: int, text: str, *, arrives: bool) -> None:
        if arrives:
            thought = len(call.thought.get(attempt, ""))
            self.live.append(call.key, attempt, len(call.said[attempt]), text, thought=thought)
        call.said[attempt] += text

    @precondition(lambda self: self.open_calls())
    @rule(pick=st.integers(0, 1))
    def attempt_again(self, pick: int) -> None:
        call = self.open_calls()[pick % len(self.open_calls())]
        attempt = call.attempt + 1
        call.said[attempt] = ""
        self.write("generation.start", call.key, attempt=attempt)

    @precondition(lambda self: self.open_calls())
    @rule(pick=st.integers(0, 1), with_text=st.booleans())
    def settle(self, pick: int, with_text: bool) -> None:
        call = self.open_calls()[pick % len(self.open_calls())]
        # A provider that gave all at once settles text that was never spoken.
        call.stored = call.said[call.attempt] + ("" if with_text else "d")
        call.over = True
        self.write(
            "generation.complete",
            call.key,
            attempt=call.attempt,
            characters=len(call.stored),
            message_id="/".join(call.key),
        )

    @rule()
    def end_turn(self) -> None:
        for call in self.open_calls():
            call.over = True
        self.write("done", (f"turn{self.turn}", ""))
        self.turn += 1

    @rule()
    def something_else_happens(self) -> None:
        self.write("budget", (f"turn{self.turn}", ""))

    # Losses

    @rule()
    def valkey_is_wiped(self) -> None:
        self.live.flush()

    @rule(kept=st.integers(1, 4))
    def the_stream_is_trimmed(self, kept: int) -> None:
        self.live.trim(kept)

    @precondition(lambda self: self.open_calls())
    @rule(who=st.integers(0, 1), lost=st.booleans())
    def valkey_is_away_while_a_call_ends(self, who: int, lost: bool) -> None:
        self.speak(pick=0, text="ab", lost=int(lost))
        self.settle(pick=0, with_text=True)
        self.read(who, cut=2, events=3, entries=3, lag=0, tokens_only=False, away=True)

    @precondition(lambda self: self.open_calls())
    @rule(who=st.integers(0, 1), cut=st.integers(1, 4), again=st.booleans())
    def it_thinks_and_is_cut_off(self, who: int, cut: int, again: bool) -> None:
        self.read_on(who)
        self.think(pick=0, count=2, lost=1)
        self.read_and_break_off(who, cut)
        if again:
            self.attempt_again(pick=0)
        self.think(pick=0, count=2, lost=1)
        self.read_on(who)

    # Readers

    @rule(
        who=st.integers(0, 1), cut=st.integers(0, 6), events=st.integers(1, 4), entries=st.integers(1, 4),
        lag=st.integers(0, 2), tokens_only=st.booleans(), away=st.booleans(),
    )  # fmt: skip
    def read(self, who: int, cut: int, events: int, entries: int, lag: int, tokens_only: bool, away: bool) -> None:
        client = self.clients[who]
        state = client.state or self.resume(client, away=away)
        batch_of_events = [] if tokens_only else [e for e in self.log if e.seq > state.cursor.seq][:events]
        for _ in range(lag):  # between the two reads
            if self.open_calls():
                self.say(self.open_calls()[0], self.open_calls()[0].attempt, "l", arrives=True)
        batch = TokenBatch(None) if away else self.live.tokens(state.epoch, state.entry_id, entries)
        frames, client.state = self.merge(state, batch_of_events, batch)
        if cut < 4:  # the connection broke after so many frames
            frames, client.state = frames[:cut], None
        for frame in frames:
            self.receive(client, frame)

    @rule(who=st.integers(0, 1))
    def read_on(self, who: int) -> None:
        self.read(who, cut=9, events=3, entries=3, lag=0, tokens_only=False, away=False)

    @rule(who=st.integers(0, 1), cut=st.integers(1, 3))
    def read_and_break_off(self, who: int, cut: int) -> None:
        self.read(who, cut=cut, events=3, entries=3, lag=0, tokens_only=False, away=False)

    @rule(who=st.integers(0, 1))
    def comes_back_with_a_bare_number(self, who: int) -> None:
        client = self.clients[who]
        client.last_id, client.state = str(client.seq), None

    @rule(who=st.integers(0, 1))
    def somebody_else_joins(self, who: int) -> None:
        self.clients[who] = Client()

    def merge(
        self, state: ReaderState, events: list[LoggedEvent], batch: TokenBatch
    ) -> tuple[list[Frame], ReaderState]:
        over = [
            key for key in unknown_calls(state, events, batch)
            if next(e.seq for e in self.log if e.key == key and e.kind == "generation.start") <= state.cursor.seq
        ]  # fmt: skip
        merged = merge(state.with_closed(over), events, batch)
        return list(merged.frames), merged.state

    def resume(self, client: Client, *, away: bool = False) -> ReaderState:
        cursor = parse_cursor(client.last_id) if client.last_id else Cursor()
        assert cursor is not None
        seen = [e for e in self.log if e.seq <= cursor.seq]
        ended = {e.turn_id for e in seen if e.kind == "done"}
        complete_keys = {e.key for e in seen if e.kind == "generation.complete"}
        attempts: dict[CallKey, int] = {}
        for e in seen:
            if e.kind == "generation.start" and e.turn_id not in ended and e.key not in complete_keys:
                attempts[e.key] = int(str(e.data["attempt"]))
        open_calls = [OpenCall(key, attempt) for key, attempt in attempts.items()]
        return resumed(cursor, open_calls, {} if away else self.live.marks(cursor, list(attempts)))

    def receive(self, client: Client, frame: Frame) -> None:
        client.last_id = frame.id
        key = (frame.turn_id, str(frame.data.get("call_id") or ""))
        if frame.kind == "token":
            assert key in client.begun and key not in client.ended, "a token outside of its call"
            assert int(str(frame.data["attempt"])) >= client.begun[key], "a token of an attempt that was replaced"
            stored = self.calls[key].stored if frame.stored_message_id else None
            client.texts[key] = client.texts.get(key, "") + (stored or str(frame.data["text"]))
            versions = [*self.calls[key].said.values(), self.calls[key].stored or ""]
            assert any(version.startswith(client.texts[key]) for version in versions), "doubled or torn text"
            return
        if frame.kind == "thinking":
            assert key in client.begun and key not in client.ended, "reasoning outside of its call"
            attempt, text = int(str(frame.data["attempt"])), client.thoughts.get(key, "") + str(frame.data["text"])
            client.thoughts[key] = text
            assert set(text) <= set(self.calls[key].thought[attempt]) and sorted(set(text)) == list(text), "doubled"
            return
        if frame.kind == "reset":
            client.texts[key] = client.thoughts[key] = ""
            return
        assert frame.data["seq"] == client.seq + 1, "a durable event was lost or repeated"
        client.seq += 1
        if frame.kind == "generation.start":
            client.begun[key] = int(str(frame.data["attempt"]))
        elif frame.kind == "generation.complete":
            client.ended.add(key)
            assert client.texts.get(key, "") == self.calls[key].stored
        elif frame.kind == "done":
            for call in self.calls.values():
                if call.key[0] == frame.turn_id and call.stored is None:
                    assert not client.texts.get(call.key), "text that was never settled stays on the screen"

    def teardown(self) -> None:
        self.end_turn()
        for client in self.clients:
            for _ in range(10_000):
                if client.seq == len(self.log):
                    break
                state = client.state or self.resume(client)
                events = [e for e in self.log if e.seq > state.cursor.seq][:3]
                frames, client.state = self.merge(state, events, self.live.tokens(state.epoch, state.entry_id, 3))
                for frame in frames:
                    self.receive(client, frame)
            assert client.seq == len(self.log), "a reader got stuck"


StreamMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
test_any_reader_sees_one_clean_text = StreamMachine.TestCase
