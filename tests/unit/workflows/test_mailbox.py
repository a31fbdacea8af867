"""The reads of a turn's record that stop signals start."""

import asyncio

from perdure.workflows.mailbox import Mailbox

STOP = [{"kind": "stop", "request_id": None}]


class Record:
    """A record whose reads take until `answers` has an answer."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[bool] = asyncio.Queue()
        self.reads = 0

    async def look(self) -> bool:
        self.reads += 1
        return await self.answers.get()


def open_mailbox(record: Record) -> tuple[Mailbox, list[str]]:
    mailbox, stops = Mailbox(None), list[str]()
    mailbox.open(record.look, lambda: stops.append("stop"))
    return mailbox, stops


async def test_any_number_of_stop_signals_starts_one_read_at_a_time() -> None:
    record = Record()
    mailbox, stops = open_mailbox(record)
    for _ in range(100):
        mailbox.put(STOP)
    await asyncio.sleep(0)
    assert record.reads == 1
    for answer in (False, True):
        mailbox.put(STOP)
        record.answers.put_nowait(answer)
        await mailbox.await_confirmation()
    await asyncio.sleep(0)
    assert (record.reads, stops, mailbox.stop) == (2, ["stop"], True)


async def test_closing_waits_for_the_current_read_and_starts_none() -> None:
    record = Record()
    mailbox, stops = open_mailbox(record)
    mailbox.put(STOP)
    closing = asyncio.create_task(mailbox.close())
    await asyncio.sleep(0.01)
    mailbox.put(STOP)
    assert not closing.done() and record.reads == 1
    record.answers.put_nowait(False)
    await closing
    assert (record.reads, stops, mailbox.stop_pending) == (1, [], True), "the second one is carried on"


async def test_an_early_stop_signal_is_read_when_the_mailbox_opens() -> None:
    record = Record()
    mailbox = Mailbox(None)
    mailbox.put(STOP)
    assert record.reads == 0
    mailbox.open(record.look, lambda: None)
    record.answers.put_nowait(True)
    await mailbox.await_confirmation()
    assert mailbox.stop
