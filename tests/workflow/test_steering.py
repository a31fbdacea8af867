"""Messages sent into a turn that runs: it hears them where it next asks its model, or gives way, wherever it is."""

import pytest

from perdure.contracts.turns import TurnAddress, TurnStatus
from perdure.core.turns import OnBusy
from tests.doubles.message_script import Line
from tests.harness import gathered
from tests.replay.recording import run_of
from tests.replay.stopping import in_a_call, silent
from tests.scale import sized
from tests.served_turns import PAUSED, PAY, Served

pytestmark = pytest.mark.usefixtures("released_target")
NEVER = Line("never said")


async def send(served: Served, to: TurnAddress, on_busy: OnBusy, *lines: Line) -> TurnAddress:
    """A message into the conversation, as the API sends it: stops are called out as well."""
    address, started = await served.harness.start(*lines, conversation_id=to.conversation_id, on_busy=on_busy)
    if started.gives_way is not None:
        await served.harness.deps.live.stop(started.gives_way)
    if started.note is not None:
        await served.harness.deps.notifier.deliver_soon(started.note)
    return address


def last_asked(served: Served, address: TurnAddress) -> list[str]:
    return [str(each["role"]) for each in served.sent_to_model(address)[-1]]


async def test_a_message_sent_while_a_call_runs_is_received_with_its_result(served: Served) -> None:
    address = await in_a_call(served, NEVER)
    assert (await send(served, address, OnBusy.STEER, NEVER, Line("as you say"))).turn_id == address.turn_id
    served.harness.world.go_on.set()
    assert (await served.until(address, TurnStatus.COMPLETED))["answer"] == "as you say"
    assert last_asked(served, address) == ["user", "assistant", "tool", "user"]
    scheduled = [name for history in await served.runs(address) for name, _ in run_of(history).scheduled]
    assert scheduled.count("model.complete") == 2 and scheduled.count("tools.run") == 1, "no hop of its own"
    following, _ = await served.run_to_end(Line("next"), conversation_id=address.conversation_id)
    assert last_asked(served, following) == ["user", "assistant", "tool", "user", "assistant", "user"], "in its place"


async def test_a_message_sent_while_the_turn_waits_for_a_person_waits_with_it(served: Served) -> None:
    address = await served.paused(Line("", [PAY]), NEVER)
    await send(served, address, OnBusy.STEER, NEVER, NEVER)
    await send(served, address, OnBusy.STEER, NEVER, Line("both heard"))
    assert (await served.row(address))["status"] == PAUSED.value
    assert await served.harness.value("SELECT status FROM approvals WHERE turn_id = $1", address.turn_id) == "pending"
    await served.decide(address)
    assert (await served.until(address, TurnStatus.COMPLETED))["answer"] == "both heard"
    assert last_asked(served, address) == ["user", "assistant", "tool", "user", "user"]
    assert served.effects(address, "/pay") == 1


@pytest.mark.parametrize("where", ["speaking", "in a call", "paused", "queued before it"])
async def test_a_turn_is_replaced_in_any_state_and_the_new_one_runs(served: Served, where: str) -> None:
    if where == "speaking":
        address = await silent(served)
    elif where == "in a call":
        address = await in_a_call(served, NEVER)
    else:
        address = await served.paused(Line("", [PAY]), NEVER)
    if where == "queued before it":
        await send(served, address, OnBusy.QUEUE, Line("later"))
    other = await send(served, address, OnBusy.REPLACE, Line("instead"))
    row = await served.until(address, TurnStatus.REPLACED)
    assert (str(row["replaced_by"]), row["problem"]) == (other.turn_id, None)
    assert (await served.until(other, TurnStatus.COMPLETED))["answer"] == "instead"
    states = await served.harness.rows("SELECT status FROM approvals WHERE turn_id = $1", address.turn_id)
    assert {each["status"] for each in states} == ({"cancelled"} if where in ("paused", "queued before it") else set())
    assert served.effects(address, "/pay") == 0
    kinds = await served.harness.kinds(address.turn_id)
    assert kinds[-1] == "done" and "stopped" in kinds
    assert await served.handle(address).result() == "replaced"


@pytest.mark.sized
async def test_a_simultaneous_approval_and_replacement_pay_at_most_once(served: Served) -> None:
    for _ in range(sized(8, 2)):
        address = await served.paused(Line("", [PAY]), Line("paid"))
        answers = await gathered(served.decide(address), send(served, address, OnBusy.REPLACE, Line("instead")))
        assert isinstance(answers[1], TurnAddress), answers
        assert (await served.until(answers[1], TurnStatus.COMPLETED))["answer"] == "instead"
        row = await served.until(address, TurnStatus.REPLACED, TurnStatus.COMPLETED)
        status = await served.harness.value("SELECT status FROM approvals WHERE turn_id = $1", address.turn_id)
        paid, state = served.effects(address, "/pay"), (await served.states(address))["t1.0"]
        assert (paid, state) in {(0, "planned"), (1, "done"), (1, "outcome_unknown"), (0, "outcome_unknown")}
        assert status == ("cancelled" if state == "planned" else state), (row["status"], status, state)
