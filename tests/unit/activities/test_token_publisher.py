"""When live tokens are sent, measured by a double of the live stream that records each arrival."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from perdure.activities.model import BATCH_CHARACTERS, MAX_PIECE_CHARACTERS, TokenPublisher
from perdure.contracts.turns import TurnAddress
from perdure.store.events.live import AppendResult, LiveTokens

ADDRESS = TurnAddress(tenant_id="t", conversation_id="c", turn_id="turn")


@dataclass
class Wire:
    """Answers appends after a while."""

    seconds: float = 0.0
    gate: asyncio.Event | None = None
    """Where it is given, appends are answered once it is open."""
    answer: AppendResult = AppendResult.ACCEPTED
    pieces: list[dict[str, Any]] = field(default_factory=list)
    under_way: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def append(self, address: TurnAddress, call_id: str, **piece: Any) -> AppendResult:
        assert self.under_way == 0, "one at a time, or they could overtake each other"
        self.under_way += 1
        self.pieces.append(piece)
        self.arrived.set()
        await (self.gate.wait() if self.gate else asyncio.sleep(self.seconds))
        self.under_way -= 1
        return self.answer

    @property
    def texts(self) -> list[str]:
        return [piece["text"] for piece in self.pieces]


def speaker(wire: Wire) -> TokenPublisher:
    return TokenPublisher(cast(LiveTokens, wire), ADDRESS, "m1", 1)


@pytest.fixture(autouse=True)
def long_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch waits for longer than a busy machine may keep this process waiting."""
    monkeypatch.setattr("perdure.activities.model.FLUSH_SECONDS", 0.5)


async def test_the_first_token_is_sent_immediately_and_later_ones_in_batches() -> None:
    wire = Wire()
    async with speaker(wire) as speaks:
        await speaks.publish_text("one ")
        assert wire.texts == ["one "]
        wire.arrived.clear()
        await speaks.publish_text("two ")
        await speaks.publish_text("three")
        assert wire.texts == ["one "]
        await asyncio.wait_for(wire.arrived.wait(), 10)  # nothing follows, and it is sent all the same
        assert wire.texts == ["one ", "two three"]
    assert [piece["sequence"] for piece in wire.pieces] == [0, 4]


async def test_a_full_batch_is_sent_without_a_wait() -> None:
    wire = Wire()
    async with speaker(wire) as speaks:
        await speaks.publish_text("first")
        for _ in range(3 * BATCH_CHARACTERS):
            await asyncio.sleep(0)  # as the network lets others run
            await speaks.publish_text("x")
        assert len(wire.pieces) >= 3
    assert "".join(wire.texts) == "first" + "x" * 3 * BATCH_CHARACTERS
    assert max(map(len, wire.texts)) <= BATCH_CHARACTERS + 10


async def test_an_answer_that_arrives_whole_is_sent_in_pieces() -> None:
    wire, text = Wire(), "".join(map(str, range(10_000)))
    async with speaker(wire) as speaks:
        await speaks.publish_text(text)
    assert "".join(wire.texts) == text and max(map(len, wire.texts)) == MAX_PIECE_CHARACTERS < len(text)
    assert [piece["sequence"] for piece in wire.pieces] == [0, MAX_PIECE_CHARACTERS, 2 * MAX_PIECE_CHARACTERS]


async def test_a_slow_valkey_makes_batches_larger_and_delays_no_answer() -> None:
    wire, words = Wire(gate=asyncio.Event()), [f"{number} " for number in range(1_000)]
    async with speaker(wire) as speaks:
        for word in words:
            await speaks.publish_text(word)
        cast(asyncio.Event, wire.gate).set()
    assert len(wire.pieces) == 2 and "".join(wire.texts) == "".join(words)


async def test_a_provider_without_pauses_yields_so_that_text_is_sent_and_a_stop_received() -> None:
    wire = Wire(seconds=0.01)
    async with speaker(wire) as speaks:
        for _ in range(20):
            await speaks.publish_text("x" * 10_000)
        assert len(wire.pieces) >= 2
    assert sum(map(len, wire.texts)) == 200_000
    async with speaker(Wire(answer=AppendResult.STOPPED)) as speaks:
        await speaks.publish_text("one")
        await asyncio.sleep(0.01)
        assert not await speaks.publish_text("two")


async def test_reasoning_and_text_keep_their_order_and_own_positions() -> None:
    wire = Wire()
    async with speaker(wire) as speaks:
        await speaks.publish_thinking("Hm. ")
        await speaks.publish_thinking("Well.")
        await speaks.publish_text("Hi ")
        await speaks.publish_text("there")
    counted = [(piece["thinking"], piece["thought"], piece["sequence"]) for piece in wire.pieces]
    assert counted == [(True, 0, 0), (True, 4, 0), (False, 9, 0)]
    assert wire.texts == ["Hm. ", "Well.", "Hi there"]


async def test_nothing_is_sent_after_the_end_and_an_interrupted_batch_is_dropped() -> None:
    wire = Wire(seconds=0.05)
    with pytest.raises(ConnectionError):
        async with speaker(wire) as speaks:
            await speaks.publish_text("one ")
            await speaks.publish_text("two")
            raise ConnectionError
    assert wire.under_way == 0 and wire.texts == ["one "]
    await asyncio.sleep(0.6)  # a batch would be due
    assert wire.texts == ["one "]
