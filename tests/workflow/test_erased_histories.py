"""With a person go the histories of the turns in which the person said something, from the real server."""

from functools import partial

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from perdure.contracts.ids import turn_workflow_id
from perdure.contracts.turns import TurnAddress, TurnStatus
from perdure.core.approvals.decisions import Decision
from perdure.store.database import new_id
from perdure.store.identity.erasure import erase
from perdure.temporal.workflow_client import forget_histories, workflow_gone
from tests.conftest import Person
from tests.doubles.spoken import Line
from tests.eventually import eventually
from tests.served import Served

SAID = "over the budget of zaphod"


async def reviewer(served: Served, name: str) -> str:
    """A reviewer of this name, who is on record; their id."""
    user_id = new_id()
    await served.desk.write(
        "INSERT INTO users (id, tenant_id, name, roles) VALUES ($1, 'local', $2, '{reviewer}')", user_id, name
    )
    served.desk.people[name] = Person("local", user_id, name, frozenset({"reviewer"}), "")
    return user_id


async def refused(served: Served, by: str) -> TurnAddress:
    """A turn that has ended, in which this person has rejected a call with a reason."""
    address = await served.paused(Line("asking", [("pay", {"amount": 5})]), Line("well"))
    await served.decide(address, decision=Decision.REJECT, comment=SAID, by=by)
    await served.until(address, TurnStatus.COMPLETED)
    await served.handle(address).result()
    return address


async def gone(client: Client, address: TurnAddress, run_id: str) -> bool:
    """Whether Temporal has nothing of this run any more."""
    try:
        await client.get_workflow_handle(turn_workflow_id(address.turn_id), run_id=run_id).fetch_history()
    except RPCError as error:
        return workflow_gone(error)
    return False


async def test_the_runs_of_a_turn_go_with_the_person_who_said_something_in_it_and_those_of_others_stay(
    served: Served,
) -> None:
    user_id = await reviewer(served, "zaphod")
    await reviewer(served, "trillian")
    theirs, others = await refused(served, "zaphod"), await refused(served, "trillian")
    before = await served.runs(theirs)
    assert len(before) == 3, "the run, the wait, the run again"
    said = [SAID.encode() in event.SerializeToString() for history in before for event in history.events]
    assert any(said), "there was something to take away"
    admin = served.desk.people["admin"].user_id
    histories = partial(forget_histories, served.client)
    done = await erase(served.desk.db, "local", "zaphod", admin, None, histories)
    assert done["histories"] == {"runs": 3, "turns_left": 0}
    started = [history.events[0].workflow_execution_started_event_attributes for history in before]
    for each in started:  # the server deletes a little later than it says so
        await eventually(partial(gone, served.client, theirs, each.original_execution_run_id))
    assert len(await served.runs(others)) == 3
    last = await served.desk.value("SELECT data FROM audit_trail WHERE kind = 'user.erased' AND subject = $1", user_id)
    assert last["histories"] == {"runs": 3, "turns_left": 0}
    assert await forget_histories(served.client, [theirs.turn_id]) == (0, 0), "asked for again"


async def test_where_temporal_is_away_the_person_is_erased_and_it_is_on_record_what_stays(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await reviewer(served, "marvin")
    await refused(served, "marvin")
    monkeypatch.setattr(served.client.workflow_service, "get_workflow_execution_history", _unavailable)
    admin = served.desk.people["admin"].user_id
    done = await erase(served.desk.db, "local", "marvin", admin, None, partial(forget_histories, served.client))
    assert done["histories"] == {"runs": 0, "turns_left": 1}
    assert str(done["name"]).startswith("erased-")


async def _unavailable(*_: object, **__: object) -> None:
    raise RPCError("nobody listens", RPCStatusCode.UNAVAILABLE, b"")
