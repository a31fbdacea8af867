"""The stream of a turn: one clean text for every reader."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from pydantic import JsonValue

from perdure.core.events import stream
from perdure.core.events.stream import (
    CallKey,
    Cursor,
    LoggedEvent,
    OpenCall,
    ReaderState,
    TokenBatch,
    merge,
    resume_reader,
)
from tests.live_model import LiveModel
from tests.scale import sized

AT = datetime(2026, 1, 1, tzinfo=UTC)
KEY: CallKey = ("turn", "m1")
OTHER: CallKey = ("turn", "m2")
numbers = st.integers(0, 10**18 - 1)


def event(seq: int, kind: str, call_id: str | None = "m1", turn_id: str = "turn", **data: object) -> LoggedEvent:
    return LoggedEvent(seq, turn_id, kind, call_id, data, AT)  # type: ignore[arg-type]


def piece(number: int, start: int, text: str, attempt: int = 1, begins: bool = False) -> stream.TokenEntry:
    return stream.TokenEntry(f"{number}-0", *KEY, attempt, start, text, begins)


def thought(number: int, before: int, text: str, attempt: int = 1, start: int = 0) -> stream.TokenEntry:
    return stream.TokenEntry(f"{number}-0", *KEY, attempt, start, text, thinking=True, thought=before)


def complete(seq: int, characters: int, attempt: int = 1) -> LoggedEvent:
    return event(seq, "generation.complete", attempt=attempt, characters=characters, message_id="stored")


def short(read: stream.MergeResult) -> list[str]:
    return [f"{f.kind}:{f.data['text']}" if f.kind in ("token", "thinking") else f.kind for f in read.frames]


def of(live: LiveModel, state: ReaderState, *events: LoggedEvent) -> stream.MergeResult:
    """The frames that a reader gets from these events and all live tokens."""
    return merge(state, events, live.tokens(state.epoch, state.entry_id))


def live_model_of(*entries: tuple[CallKey, int, int, str]) -> LiveModel:
    live = LiveModel()
    for entry in entries:
        live.append(*entry)
    return live


def unmarked(live: LiveModel) -> ReaderState:
    """A reader that comes back while it is unknown what it holds."""
    return resume_reader(Cursor(1, "e1", live.entries[-1].id), [OpenCall(KEY, 1)], {})


def comes_back(read: stream.MergeResult, live: LiveModel, *open_calls: OpenCall) -> ReaderState:
    cursor = stream.parse_cursor(read.frames[-1].id)
    assert cursor is not None
    return resume_reader(cursor, open_calls, live.marks(cursor, [call.key for call in open_calls]))


START, FRESH = event(1, "generation.start", attempt=1), ReaderState(Cursor())
AGAIN, OTHERS = event(2, "generation.start", attempt=2), stream.TokenEntry("1-0", "other", "m1", 1, 0, "no")
BEGINS = piece(2, 0, "", 2, begins=True)


@pytest.mark.parametrize(
    ("events", "entries", "shown"),
    [
        ([AGAIN, complete(3, 2, attempt=2)], [piece(1, 0, "Hel"), BEGINS, piece(3, 0, "Hi", 2)],
         ["token:Hel", "reset", "token:Hi", "generation.start", "generation.complete"]),
        ([complete(2, 11)], [piece(1, 0, "Hello "), piece(2, 6, "there")],
         ["token:Hello there", "generation.complete"]),
        ([event(2, "done", None)], [piece(1, 0, "Hel")], ["token:Hel", "reset", "done"]),
        ([complete(2, 0)], [piece(1, 0, "Hel")], ["token:Hel", "reset", "generation.complete"]),
        ([], [OTHERS, piece(2, 0, "yes")], ["token:yes"]),
        ([complete(2, 2)], [thought(1, 0, "Well, "), thought(2, 6, "yes."), piece(3, 0, "Hi")],
         ["thinking:Well, yes.", "token:Hi", "generation.complete"]),
        ([AGAIN], [thought(1, 0, "Well")], ["thinking:Well", "reset", "generation.start"]),
        ([complete(2, 2)], [thought(1, 0, "Well, "), thought(2, 20, "yes."), piece(3, 0, "Hi")],
         ["thinking:Well, yes.", "token:Hi", "generation.complete"]),
    ],
    ids=["a new attempt resets", "settled", "never settled", "settled as nothing", "another turn",
         "reasoning is no text", "reset", "lost"],
)  # fmt: skip
def test_a_new_reader_gets_every_token_once_and_resets_where_text_is_void(
    events: list[LoggedEvent], entries: list[stream.TokenEntry], shown: list[str]
) -> None:
    merged = merge(FRESH, [START, *events], TokenBatch("e", entries), turn_id="turn")
    assert short(merged) == ["generation.start", *shown]
    assert merged.state.cursor == Cursor(1 + len(events), "e", entries[-1].id)


def test_a_token_of_a_call_that_has_not_begun_waits() -> None:
    batch = TokenBatch("e", [piece(1, 0, "Hello")])
    early = merge(FRESH, [], batch)
    assert early.blocked and not early.frames and early.state.cursor == Cursor()
    assert stream.unknown_calls(FRESH, [], batch) == [KEY]
    assert short(merge(early.state, [START], batch)) == ["generation.start", "token:Hello"]


def test_missing_tokens_are_replaced_by_the_stored_text() -> None:
    merged = merge(FRESH, [START, complete(2, 11)], TokenBatch("e", [piece(1, 0, "Hello ")]))
    assert short(merged) == ["generation.start", "token:Hello ", "reset", "token:", "generation.complete"]
    assert [frame.stored_message_id for frame in merged.frames if frame.kind == "token"] == [None, "stored"]


def test_after_a_gap_no_token_is_shown_until_the_stored_text() -> None:
    batch = TokenBatch("e", [piece(1, 0, "Hel"), piece(2, 6, "world"), piece(3, 11, "!")])
    merged = merge(FRESH, [START], batch)
    assert short(merged) == ["generation.start", "token:Hel"]
    assert merged.state.cursor == Cursor(1, "e", "1-0"), "the cursor claims no entry beyond the hole"


def test_more_entries_are_asked_for_before_a_call_is_called_short() -> None:
    merged = merge(FRESH, [START, complete(2, 6)], TokenBatch("e", [piece(1, 0, "Hel")], more=True))
    assert merged.starved and merged.state.cursor.seq == 1
    done = merge(merged.state, [complete(2, 6)], TokenBatch("e", [piece(2, 3, "lo!")]))
    assert short(done) == ["token:lo!", "generation.complete"]


@pytest.mark.parametrize(("cursor", "marks", "entry", "shown"), [
    (Cursor(1, stream.LOST_EPOCH), {}, piece(1, 0, "Hello there"), ["reset", "token:Hello there"]),
    (Cursor(1, "e", "1-0"), {KEY: stream.StreamMark(1, 6, is_whole=True)}, piece(2, 6, "there"), ["token:there"]),
])  # fmt: skip
def test_a_reader_continues_at_its_position_or_is_reset_if_it_is_unknown(
    cursor: Cursor, marks: dict[CallKey, stream.StreamMark], entry: stream.TokenEntry, shown: list[str]
) -> None:
    merged = merge(resume_reader(cursor, [OpenCall(KEY, 1)], marks), [complete(2, 11)], TokenBatch("e", [entry]))
    assert short(merged) == [*shown, "generation.complete"]


def test_a_reset_during_an_outage_of_valkey_is_sent_again_after_it() -> None:
    live = live_model_of((KEY, 2, 0, "ab"))  # shown before its start was read
    away = unmarked(live)
    begun = merge(away, [AGAIN], TokenBatch(None))
    assert short(begun) == ["reset", "generation.start"]
    stays = merge(begun.state, [complete(3, 2, attempt=2)], live.tokens(away.epoch, away.entry_id))
    assert short(stays) == ["reset", "token:", "generation.complete"]
    merged = of(live, comes_back(begun, live, OpenCall(KEY, 2)), complete(3, 2, attempt=2))
    assert short(merged) == ["reset", "token:ab", "generation.complete"]


def test_another_calls_tokens_do_not_claim_a_reset_during_an_outage_of_valkey() -> None:
    live = live_model_of((KEY, 2, 0, "ab"))
    begun = merge(unmarked(live), [AGAIN, event(3, "generation.start", "m2", attempt=1)], TokenBatch(None)).state
    live.append(OTHER, 1, 0, "x")
    back = comes_back(of(live, begun, event(4, "budget", None)), live, OpenCall(KEY, 2), OpenCall(OTHER, 1))
    assert short(merge(back, [complete(5, 2, attempt=2)], TokenBatch(None)))[0] == "reset"


def test_a_tail_whose_beginning_was_reset_is_not_shown_to_a_reader_that_comes_back() -> None:
    live = live_model_of((KEY, 2, 0, "ab"))
    away = unmarked(live)
    live.append(KEY, 2, 2, "cd")
    merged = of(live, away, event(2, "budget", None))
    assert short(merged) == ["reset", "budget"]
    assert short(of(live, comes_back(merged, live, OpenCall(KEY, 1)))) == ["reset", "token:abcd"]


def test_a_paused_call_is_reset_when_its_new_attempt_starts() -> None:
    live = live_model_of((KEY, 1, 0, "abc"))
    calls = [OpenCall(KEY, 1), OpenCall(OTHER, 1)]
    cursor = Cursor(2, "e1", live.entries[-1].id)
    state = resume_reader(cursor, calls, live.marks(cursor, [call.key for call in calls]))
    live.append(KEY, 2, 0, "bb")
    rests = of(live, state)
    assert not rests.frames, "it is unknown what the reader holds of the silent call"
    begun = merge(rests.state, [event(3, "generation.start", attempt=2)], TokenBatch(None))
    assert short(begun) == ["reset", "generation.start"]


def test_a_call_whose_tokens_were_trimmed_before_they_were_read_is_not_taken_for_shown() -> None:
    """Two calls at once: all that the first said is gone, and what the second says moves the reader past it."""
    live = live_model_of((KEY, 1, 0, "Hello"), (OTHER, 1, 0, "Hi"))
    live.trim(1)
    merged = of(live, FRESH, START, event(2, "generation.start", "m2", attempt=1))
    assert short(merged) == ["generation.start", "generation.start", "token:Hi"]
    read = of(live, comes_back(merged, live, OpenCall(KEY, 1), OpenCall(OTHER, 1)), complete(3, 5))
    assert short(read) == ["reset", "token:", "generation.complete"]
    assert read.frames[1].stored_message_id == "stored"


def test_an_unknown_reader_gets_reasoning_only_from_its_beginning() -> None:
    state = resume_reader(Cursor(1, stream.LOST_EPOCH), [OpenCall(KEY, 1)], {})
    assert not merge(state, [], TokenBatch("e", [thought(2, 6, "yes.")])).frames
    whole = merge(state, [], TokenBatch("e", [thought(1, 0, "Well, "), thought(2, 6, "yes.")]))
    assert short(whole) == ["reset", "thinking:Well, yes."]


@given(numbers, st.text("0123456789abcdefx", min_size=1, max_size=32), numbers, numbers)
def test_cursors_and_bare_numbers_are_read_back(seq: int, epoch: str, milliseconds: int, number: int) -> None:
    cursor = Cursor(seq, epoch, f"{milliseconds}-{number}")
    assert stream.parse_cursor(str(cursor)) == cursor
    assert stream.parse_cursor(str(seq)) == Cursor(seq, stream.LOST_EPOCH)


@pytest.mark.parametrize("bad", ["", "x", "-1", "1.2", "1.e.5", "1.E.1-1", "1.e.1-1 ", "1" * 19, "1.e.1-1.", "٣"])
def test_a_text_that_resembles_a_cursor_is_not_one(bad: str) -> None:
    assert stream.parse_cursor(bad) is None


@given(st.text())
def test_any_text_is_read_as_a_cursor_or_none_without_an_error(text: str) -> None:
    assert stream.parse_cursor(text) is None or text.isascii()
    ids = ["9-0", "10-0", "10-2", "10-10"]
    assert sorted(ids, key=stream.entry_order) == ids, "by number and not by text"


@dataclass
class Client:
    """The visible text of each call, put together from frames."""

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

    def picked(self, pick: int) -> Call:
        return self.open_calls()[pick % len(self.open_calls())]

    @precondition(lambda self: len(self.open_calls()) < 2)
    @rule()
    def begin_call(self) -> None:
        key = (f"turn{self.turn}", f"m{len(self.calls)}")
        self.calls[key] = Call(key, {1: ""})
        self.write("generation.start", key, attempt=1)

    @precondition(lambda self: self.open_calls())
    @rule(pick=st.integers(0, 1), text=st.text("abc", min_size=1, max_size=3), lost=st.integers(0, 5))
    def speak(self, pick: int, text: str, lost: int) -> None:
        self.say(self.picked(pick), self.picked(pick).attempt, text, arrives=lost != 0)

    @precondition(lambda self: self.calls)
    @rule(pick=st.integers(0, 9), attempt=st.integers(1, 3))
    def a_zombie_speaks(self, pick: int, attempt: int) -> None:
        call = list(self.calls.values())[pick % len(self.calls)]
        if attempt < call.attempt:
            self.say(call, attempt, "z", arrives=True)

    @precondition(lambda self: self.open_calls())
    @rule(pick=st.integers(0, 1), count=st.integers(1, 3), lost=st.integers(0, 5))
    def think(self, pick: int, count: int, lost: int) -> None:
        call = self.picked(pick)
        before = call.thought.get(call.attempt, "")
        # Each character of a call's reasoning is another one, so that one shown twice is seen.
        text = "".join(chr(0x4E00 + len(before) + place) for place in range(count))
        if lost:
            said = len(call.said[call.attempt])
            self.live.append(call.key, call.attempt, said, text, thinking=True, thought=len(before))
        call.thought[call.attempt] = before + text

    def say(self, call: Call, attempt: int, text: str, *, arrives: bool) -> None:
        if arrives:
            thought = len(call.thought.get(attempt, ""))
            self.live.append(call.key, attempt, len(call.said[attempt]), text, thought=thought)
        call.said[attempt] += text

    @precondition(lambda self: self.open_calls())
    @rule(pick=st.integers(0, 1))
    def attempt_again(self, pick: int) -> None:
        call = self.picked(pick)
        call.said[call.attempt + 1] = ""
        self.write("generation.start", call.key, attempt=call.attempt)

    @precondition(lambda self: self.open_calls())
    @rule(pick=st.integers(0, 1), with_text=st.booleans())
    def settle(self, pick: int, with_text: bool) -> None:
        call = self.picked(pick)
        # A provider that answers in one piece settles text that was never streamed.
        call.stored = call.said[call.attempt] + ("" if with_text else "d")
        call.over = True
        data: dict[str, JsonValue] = {"characters": len(call.stored), "message_id": "/".join(call.key)}
        self.write("generation.complete", call.key, attempt=call.attempt, **data)

    @rule()
    def end_turn(self) -> None:
        for call in self.open_calls():
            call.over = True
        self.write("done", (f"turn{self.turn}", ""))
        self.turn += 1

    @rule()
    def something_else_happens(self) -> None:
        self.write("budget", (f"turn{self.turn}", ""))

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
        merged = self.merge(state, batch_of_events, batch)
        broken = cut < 4  # the connection broke after so many frames
        client.state = None if broken else merged.state
        for frame in merged.frames[: cut if broken else None]:
            self.receive(client, frame)

    @rule(who=st.integers(0, 1))
    def read_on(self, who: int) -> None:
        self.read(who, cut=9, events=3, entries=3, lag=0, tokens_only=False, away=False)

    @rule(who=st.integers(0, 1), cut=st.integers(1, 3))
    def read_and_break_off(self, who: int, cut: int) -> None:
        self.read(who, cut=cut, events=3, entries=3, lag=0, tokens_only=False, away=False)

    @rule(who=st.integers(0, 1))
    def comes_back_with_a_bare_number(self, who: int) -> None:
        self.clients[who].last_id, self.clients[who].state = str(self.clients[who].seq), None

    @rule(who=st.integers(0, 1))
    def somebody_else_joins(self, who: int) -> None:
        self.clients[who] = Client()

    def merge(self, state: ReaderState, events: list[LoggedEvent], batch: TokenBatch) -> stream.MergeResult:
        over = [
            key for key in stream.unknown_calls(state, events, batch)
            if next(e.seq for e in self.log if e.key == key and e.kind == "generation.start") <= state.cursor.seq
        ]  # fmt: skip
        return merge(state.with_closed(over), events, batch)

    def resume(self, client: Client, *, away: bool = False) -> ReaderState:
        cursor = stream.parse_cursor(client.last_id) if client.last_id else Cursor()
        assert cursor is not None
        seen = [e for e in self.log if e.seq <= cursor.seq]
        ended = {e.turn_id for e in seen if e.kind == "done"}
        complete_keys = {e.key for e in seen if e.kind == "generation.complete"}
        attempts: dict[CallKey, int] = {}
        for e in seen:
            if e.kind == "generation.start" and e.turn_id not in ended and e.key not in complete_keys:
                attempts[e.key] = int(str(e.data["attempt"]))
        open_calls = [OpenCall(key, attempt) for key, attempt in attempts.items()]
        return resume_reader(cursor, open_calls, {} if away else self.live.marks(cursor, list(attempts)))

    def receive(self, client: Client, frame: stream.Frame) -> None:
        client.last_id = frame.id
        key = (frame.turn_id, str(frame.data.get("call_id") or ""))
        if frame.kind == "token":
            assert key in client.begun and key not in client.ended, "a token outside of its call"
            assert int(str(frame.data["attempt"])) >= client.begun[key], "a token of an attempt that was replaced"
            stored = self.calls[key].stored if frame.stored_message_id else None
            client.texts[key] = client.texts.get(key, "") + (stored or str(frame.data["text"]))
            versions = [*self.calls[key].said.values(), self.calls[key].stored or ""]
            assert any(version.startswith(client.texts[key]) for version in versions), "doubled or torn text"
        elif frame.kind == "thinking":
            assert key in client.begun and key not in client.ended, "reasoning outside of its call"
            attempt, text = int(str(frame.data["attempt"])), client.thoughts.get(key, "") + str(frame.data["text"])
            client.thoughts[key] = text
            assert set(text) <= set(self.calls[key].thought[attempt]) and sorted(set(text)) == list(text), "doubled"
        elif frame.kind == "reset":
            client.texts[key] = client.thoughts[key] = ""
        else:
            self.receive_event(client, frame, key)

    def receive_event(self, client: Client, frame: stream.Frame, key: CallKey) -> None:
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
        for who, client in enumerate(self.clients):
            for _ in range(10_000):
                if client.seq < len(self.log):
                    self.read_on(who)
            assert client.seq == len(self.log), "a reader got stuck"


StreamMachine.TestCase.settings = settings(max_examples=sized(200, 40), stateful_step_count=40, deadline=None)
test_any_reader_sees_one_clean_text = pytest.mark.sized(StreamMachine.TestCase)
