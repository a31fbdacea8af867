"""The merged stream by examples; test_stream_machine.py tries everything else."""

from datetime import UTC, datetime

from perdure.core.events.stream import (
    LOST_EPOCH,
    CallKey,
    Cursor,
    Frame,
    LoggedEvent,
    Mark,
    OpenCall,
    ReaderState,
    TokenBatch,
    TokenEntry,
    merge,
    parse_cursor,
    resumed,
    unknown_calls,
)
from tests.live_model import LiveModel

AT = datetime(2026, 1, 1, tzinfo=UTC)
KEY: CallKey = ("turn", "m1")


def event(seq: int, kind: str, call_id: str | None = "m1", turn_id: str = "turn", **data: object) -> LoggedEvent:
    return LoggedEvent(seq, turn_id, kind, call_id, data, AT)  # type: ignore[arg-type]


def piece(number: int, start: int, text: str, attempt: int = 1, begins: bool = False) -> TokenEntry:
    return TokenEntry(f"{number}-0", *KEY, attempt, start, text, begins)


def thought(number: int, before: int, text: str, attempt: int = 1, start: int = 0) -> TokenEntry:
    return TokenEntry(f"{number}-0", *KEY, attempt, start, text, thinking=True, thought=before)


def complete(seq: int, characters: int, attempt: int = 1) -> LoggedEvent:
    return event(seq, "generation.complete", attempt=attempt, characters=characters, message_id="stored")


def short(frames: list[Frame]) -> list[str]:
    return [f"{f.kind}:{f.data['text']}" if f.kind in ("token", "thinking") else f.kind for f in frames]


def comes_back(last: Frame, live: LiveModel, *open_calls: OpenCall) -> ReaderState:
    cursor = parse_cursor(last.id)
    assert cursor is not None
    return resumed(cursor, open_calls, live.marks(cursor, [call.key for call in open_calls]))


START = event(1, "generation.start", attempt=1)
FRESH = ReaderState(Cursor())


def test_tokens_stand_between_start_and_complete() -> None:
    batch = TokenBatch("e", [piece(1, 0, "Hello "), piece(2, 6, "there")])
    merged = merge(FRESH, [START, complete(2, 11)], batch)
    assert short(list(merged.frames)) == ["generation.start", "token:Hello there", "generation.complete"]
    assert merged.state.cursor == Cursor(2, "e", "2-0")


def test_a_token_of_a_call_that_has_not_begun_waits() -> None:
    batch = TokenBatch("e", [piece(1, 0, "Hello")])
    early = merge(FRESH, [], batch)
    assert early.blocked and not early.frames and early.state.cursor == Cursor()
    assert unknown_calls(FRESH, [], batch) == [KEY]
    assert short(list(merge(early.state, [START], batch).frames)) == ["generation.start", "token:Hello"]


def test_missing_tokens_are_replaced_by_the_stored_text() -> None:
    merged = merge(FRESH, [START, complete(2, 11)], TokenBatch("e", [piece(1, 0, "Hello ")]))
    assert short(list(merged.frames)) == ["generation.start", "token:Hello ", "reset", "token:", "generation.complete"]
    assert [frame.stored_message_id for frame in merged.frames if frame.kind == "token"] == [None, "stored"]


def test_a_hole_shows_nothing_until_the_stored_text_comes() -> None:
    batch = TokenBatch("e", [piece(1, 0, "Hel"), piece(2, 6, "world"), piece(3, 11, "!")])
    merged = merge(FRESH, [START], batch)
    assert short(list(merged.frames)) == ["generation.start", "token:Hel"]
    assert merged.state.cursor == Cursor(1, "e", "1-0"), "the cursor claims no entry beyond the hole"


def test_a_new_attempt_resets_what_the_old_one_said() -> None:
    batch = TokenBatch("e", [piece(1, 0, "Hel"), piece(2, 0, "", 2, begins=True), piece(3, 0, "Hi", 2)])
    merged = merge(FRESH, [START, event(2, "generation.start", attempt=2), complete(3, 2, attempt=2)], batch)
    kinds = short(list(merged.frames))
    assert kinds == ["generation.start", "token:Hel", "reset", "token:Hi", "generation.start", "generation.complete"]


def test_a_stale_attempt_is_not_heard() -> None:
    begun = merge(FRESH, [START, event(2, "generation.start", attempt=2)], TokenBatch(None)).state
    assert not merge(begun, [], TokenBatch("e", [piece(1, 0, "zombie", attempt=1)])).frames


def test_text_that_was_never_settled_is_reset_at_the_end_of_the_turn() -> None:
    batch = TokenBatch("e", [piece(1, 0, "Hel")])
    merged = merge(FRESH, [START, event(2, "done", None)], batch)
    assert short(list(merged.frames)) == ["generation.start", "token:Hel", "reset", "done"]


def test_a_turns_stream_passes_by_the_tokens_of_other_turns() -> None:
    other = TokenEntry("1-0", "other", "m1", 1, 0, "no")
    merged = merge(FRESH, [START], TokenBatch("e", [other, piece(2, 0, "yes")]), turn_id="turn")
    assert short(list(merged.frames)) == ["generation.start", "token:yes"]


def test_more_entries_are_asked_for_before_a_call_is_called_short() -> None:
    merged = merge(FRESH, [START, complete(2, 6)], TokenBatch("e", [piece(1, 0, "Hel")], more=True))
    assert merged.starved and merged.state.cursor.seq == 1
    done = merge(merged.state, [complete(2, 6)], TokenBatch("e", [piece(2, 3, "lo!")]))
    assert short(list(done.frames)) == ["token:lo!", "generation.complete"]


def test_resume_without_any_knowledge_resets_before_the_first_new_text() -> None:
    state = resumed(Cursor(1, LOST_EPOCH), [OpenCall(KEY, 1)], {})
    merged = merge(state, [], TokenBatch("e", [piece(1, 0, "Hello")]))
    assert short(list(merged.frames)) == ["reset", "token:Hello"]


def test_resume_in_the_middle_of_a_call_goes_on_where_it_was() -> None:
    state = resumed(Cursor(1, "e", "1-0"), [OpenCall(KEY, 1)], {KEY: Mark(1, 6, whole=True)})
    merged = merge(state, [complete(2, 11)], TokenBatch("e", [piece(2, 6, "there")]))
    assert short(list(merged.frames)) == ["token:there", "generation.complete"]


def test_a_call_that_was_reset_while_valkey_was_away_is_told_again_when_it_is_back() -> None:
    live = LiveModel()
    live.append(KEY, 2, 0, "ab")  # shown before its start was read
    away = resumed(Cursor(1, "e1", live.entries[-1].id), [OpenCall(KEY, 1)], {})
    begun = merge(away, [event(2, "generation.start", attempt=2)], TokenBatch(None))
    assert short(list(begun.frames)) == ["reset", "generation.start"]
    stays = merge(begun.state, [complete(3, 2, attempt=2)], live.tokens(away.epoch, away.entry_id))
    assert short(list(stays.frames)) == ["reset", "token:", "generation.complete"]
    back = comes_back(begun.frames[-1], live, OpenCall(KEY, 2))
    merged = merge(back, [complete(3, 2, attempt=2)], live.tokens(back.epoch, back.entry_id))
    assert short(list(merged.frames)) == ["reset", "token:ab", "generation.complete"]


def test_another_calls_tokens_do_not_claim_what_was_reset_while_valkey_was_away() -> None:
    live = LiveModel()
    live.append(KEY, 2, 0, "ab")
    away = resumed(Cursor(1, "e1", live.entries[-1].id), [OpenCall(KEY, 1)], {})
    events = [event(2, "generation.start", attempt=2), event(3, "generation.start", "m2", attempt=1)]
    begun = merge(away, events, TokenBatch(None)).state
    live.append(("turn", "m2"), 1, 0, "x")
    merged = merge(begun, [event(4, "budget", None)], live.tokens(begun.epoch, begun.entry_id))
    back = comes_back(merged.frames[-1], live, OpenCall(KEY, 2), OpenCall(("turn", "m2"), 1))
    assert short(list(merge(back, [complete(5, 2, attempt=2)], TokenBatch(None)).frames))[0] == "reset"


def test_a_tail_whose_beginning_was_reset_is_not_shown_to_a_reader_that_comes_back() -> None:
    live = LiveModel()
    live.append(KEY, 2, 0, "ab")
    away = resumed(Cursor(1, "e1", live.entries[-1].id), [OpenCall(KEY, 1)], {})
    live.append(KEY, 2, 2, "cd")
    merged = merge(away, [event(2, "budget", None)], live.tokens(away.epoch, away.entry_id))
    assert short(list(merged.frames)) == ["reset", "budget"]
    back = comes_back(merged.frames[-1], live, OpenCall(KEY, 1))
    assert short(list(merge(back, [], live.tokens(back.epoch, back.entry_id)).frames)) == ["reset", "token:abcd"]


def test_a_call_that_rests_is_reset_when_its_new_attempt_starts() -> None:
    live = LiveModel()
    live.append(KEY, 1, 0, "abc")
    calls = [OpenCall(KEY, 1), OpenCall(("turn", "m2"), 1)]
    cursor = Cursor(2, "e1", live.entries[-1].id)
    state = resumed(cursor, calls, live.marks(cursor, [call.key for call in calls]))
    live.append(KEY, 2, 0, "bb")
    rests = merge(state, [], live.tokens(state.epoch, state.entry_id))
    assert not rests.frames, "nobody knows what the reader holds of the silent call"
    begun = merge(rests.state, [event(3, "generation.start", attempt=2)], TokenBatch(None))
    assert short(list(begun.frames)) == ["reset", "generation.start"]


def test_a_call_whose_tokens_were_trimmed_before_they_were_read_is_not_taken_for_shown() -> None:
    """Two calls at once: all that the first said is gone, and what the second says moves the reader past it."""
    live, other = LiveModel(), ("turn", "m2")
    live.append(KEY, 1, 0, "Hello")
    live.append(other, 1, 0, "Hi")
    live.trim(1)
    begun = [START, event(2, "generation.start", "m2", attempt=1)]
    batch = live.tokens("", "0-0")
    merged = merge(FRESH, begun, batch)
    assert short(list(merged.frames)) == ["generation.start", "generation.start", "token:Hi"]
    back = comes_back(merged.frames[-1], live, OpenCall(KEY, 1), OpenCall(other, 1))
    frames = merge(back, [complete(3, 5)], live.tokens(back.epoch, back.entry_id)).frames
    assert short(list(frames)) == ["reset", "token:", "generation.complete"]
    assert frames[1].stored_message_id == "stored"


def test_reasoning_is_shown_as_it_comes_and_is_no_part_of_the_text() -> None:
    batch = TokenBatch("e", [thought(1, 0, "Well, "), thought(2, 6, "yes."), piece(3, 0, "Hi")])
    merged = merge(FRESH, [START, complete(2, 2)], batch)
    assert short(list(merged.frames)) == ["generation.start", "thinking:Well, yes.", "token:Hi", "generation.complete"]


def test_a_new_attempt_resets_reasoning_that_no_text_has_followed() -> None:
    merged = merge(FRESH, [START, event(2, "generation.start", attempt=2)], TokenBatch("e", [thought(1, 0, "Well")]))
    assert short(list(merged.frames)) == ["generation.start", "thinking:Well", "reset", "generation.start"]


def test_reasoning_that_is_lost_is_not_mended_and_no_reason_to_reset() -> None:
    batch = TokenBatch("e", [thought(1, 0, "Well, "), thought(2, 20, "yes."), piece(3, 0, "Hi")])
    merged = merge(FRESH, [START, complete(2, 2)], batch)
    assert "reset" not in short(list(merged.frames))


def test_a_reader_cut_off_in_the_middle_of_the_reasoning_goes_on_there() -> None:
    live = LiveModel()
    live.append(KEY, 1, 0, "Well, ", thinking=True)
    begun = merge(FRESH, [START], live.tokens("", "0-0"))
    live.append(KEY, 1, 0, "yes.", thinking=True, thought=6)
    live.append(KEY, 1, 0, "Hi", thought=10)
    back = comes_back(begun.frames[-1], live, OpenCall(KEY, 1))
    frames = merge(back, [complete(2, 2)], live.tokens(back.epoch, back.entry_id)).frames
    assert short(list(frames)) == ["thinking:yes.", "token:Hi", "generation.complete"]


def test_a_reader_that_comes_back_has_its_reasoning_voided_by_a_new_attempt() -> None:
    live = LiveModel()
    live.append(KEY, 1, 0, "Well", thinking=True)
    begun = merge(FRESH, [START], live.tokens("", "0-0"))
    back = comes_back(begun.frames[-1], live, OpenCall(KEY, 1))
    live.append(KEY, 2, 0, "Now", thinking=True)
    assert short(list(merge(back, [], live.tokens(back.epoch, back.entry_id)).frames)) == ["reset", "thinking:Now"]


def test_a_reader_of_which_nothing_is_known_hears_the_reasoning_from_its_beginning_only() -> None:
    state = resumed(Cursor(1, LOST_EPOCH), [OpenCall(KEY, 1)], {})
    assert not merge(state, [], TokenBatch("e", [thought(2, 6, "yes.")])).frames
    whole = merge(state, [], TokenBatch("e", [thought(1, 0, "Well, "), thought(2, 6, "yes.")]))
    assert short(list(whole.frames)) == ["reset", "thinking:Well, yes."]
