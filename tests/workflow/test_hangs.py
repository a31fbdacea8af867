"""Tools that make a worker hang: a process that ends itself, as often as its supervisor starts it again."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from temporalio.client import Client

from perdure.activities.toolbox.engine_tools import CORE_BY_NAME
from perdure.apps import load_app, publish
from perdure.contracts.ids import effect_key
from perdure.contracts.turns import ENDED, Kind, Routing
from perdure.core.calls.hangs import hanging_call
from perdure.local import DataParts
from perdure.local.ports import free_port
from perdure.telemetry.hangs import earlier_hang
from tests.conftest import Urls
from tests.doubles.message_script import Line
from tests.eventually import until
from tests.harness import Harness, publish_app
from tests.repo.committed import ROOT
from tests.served_turns import ALL_KINDS, Served, serve

BOUND_SECONDS = "4"
APP = {
    "app.yaml": "name: jammed\ntitle: An app whose tools hang\n",
    "agents/jammed.yaml": "id: jammed\ntitle: Jammed\ntopology: tool_loop\ncore_tools: false\n"
    "tools: [match, nod, linger]\n",
    "tools/jam.py": '''
import asyncio, re, time
from perdure import tool

@tool(effect="read")
async def match() -> str:
    """A pattern with exponential effort, which keeps Python's lock."""
    await asyncio.sleep(1)
    return str(re.match(r"(a+)+$", 64 * "a" + "b"))

@tool(effect="opaque", approval=False)
async def nod() -> str:
    """Block the loop."""
    time.sleep(600)
    return "nodded"

@tool(effect="read")
async def linger() -> str:
    """Await."""
    await asyncio.sleep(6)
    return "done"
''',
}


class Restarted:
    """The worker of the tools' queue, started again each time that it ends."""

    def __init__(self, environ: dict[str, str]) -> None:
        self._environ = environ
        self.codes: list[int] = []
        self.process: Process | None = None

    async def run(self) -> None:
        command = (sys.executable, "worker.py", "--queues", "tools")
        while True:
            self.process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=self._environ)
            self.codes.append(await self.process.wait())

    def end(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.kill()


def environment(parts: DataParts, urls: Urls, folder: Path, **given: str) -> dict[str, str]:
    assert parts.redis_url is not None and parts.temporal is not None
    return {
        **os.environ, "DATABASE_URL": urls.app, "REDIS_URL": parts.redis_url, "PERDURE_APP": str(folder),
        "TEMPORAL_ADDRESS": parts.temporal.address, "TEMPORAL_NAMESPACE": parts.temporal.namespace,
        "TEMPORAL_CONFIG_FILE": os.devnull, "PERDURE_READY_FILE": str(folder / "ready"),
        "PERDURE_EXIT_WHEN_HUNG": "1", "PERDURE_HANG_SECONDS": BOUND_SECONDS, **given,
    }  # fmt: skip


HANGS = "import signal, time\nsignal.signal(signal.SIGUSR1, lambda *_: time.sleep(600))\n"
"""A module that Python imports at its start: a signal blocks the main thread."""


async def test_the_api_and_the_relay_end_if_they_hang(urls: Urls, parts: DataParts, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HANGS)
    beside = {"PYTHONPATH": str(tmp_path), "PERDURE_PORT": str(free_port()), "DATABASE_RELAY_URL": urls.relay}

    async def hangs(name: str, *command: str) -> int:
        ready = tmp_path / name
        given = environment(parts, urls, tmp_path, **beside, PERDURE_HOME=str(tmp_path), PERDURE_READY_FILE=str(ready))
        process = await asyncio.create_subprocess_exec(sys.executable, *command, cwd=ROOT, env=given)
        try:
            await until(ready.exists, seconds=60)
            process.send_signal(signal.SIGUSR1)
            return await asyncio.wait_for(process.wait(), 30)
        finally:
            if process.returncode is None:
                process.kill()

    api, relay = hangs("api", "-m", "perdure.api"), hangs("relay", "worker.py", "--relay")
    assert set(await asyncio.gather(api, relay)) == {1}
    for name in ("api", "relay"):
        hang = earlier_hang(tmp_path / name)
        assert hang and "sitecustomize.py" in hang.stacks and hanging_call(hang) is None


async def test_a_call_that_hangs_ends_its_worker_twice_and_no_call_beside_it_fails(
    harness: Harness, temporal: Client, urls: Urls, parts: DataParts, tmp_path: Path
) -> None:
    for name, text in APP.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    app = load_app(tmp_path)
    assert not app.problems, app.problems
    await publish_app(
        urls.owner, [(app.name, agent) for agent in publish(app, [t.card for t in CORE_BY_NAME.values()])]
    )
    served = Served(replace(harness, routing=Routing.spread()), temporal)
    worker = Restarted(environment(parts, urls, tmp_path))
    async with AsyncExitStack() as stack:
        await serve(stack, served.harness, tuple(kind for kind in ALL_KINDS if kind is not Kind.TOOLS))
        running = asyncio.create_task(worker.run())
        stack.callback(worker.end)
        stack.callback(running.cancel)
        nods = await served.begin(Line("nods", [("nod", {})]), Line("well"), agent_id="jammed")
        await until(lambda: (tmp_path / "ready").exists(), seconds=60)

        async def state() -> bool:
            return (await served.states(nods))["t1.0"] == "outcome_unknown"

        await until(state, seconds=90)
        assert worker.codes == [1]
        lingers = await served.begin(Line("lingers", [("linger", {})]), Line("well"), agent_id="jammed")
        matches = await served.begin(Line("matches", [("match", {})]), Line("well"), agent_id="jammed")
        row = await served.until(matches, *ENDED, seconds=120)
        assert (row["status"], row["problem"]["code"]) == ("failed", "tool_hung")
        assert (await served.until(lingers, *ENDED, seconds=60))["status"] == "completed"
        again = {"agent_id": "jammed", "conversation_id": matches.conversation_id}
        assert (await served.run_to_end(Line("well"), **again))[1]["status"] == "completed"
        drains = await served.begin(Line("lingers", [("linger", {})]), Line("well"), agent_id="jammed")

        async def lingers_again() -> bool:
            return (await served.states(drains)).get("t1.0") == "reserved"

        await until(lingers_again)
        assert worker.process is not None and worker.codes == [1, 1, 1]
        worker.process.terminate()
        assert (await served.until(drains, *ENDED, seconds=60))["status"] == "completed"
        await until(lambda: worker.codes == [1, 1, 1, 0], seconds=60)
    assert (await harness.call_row(drains))["epoch"] == 1, "the drain waited for it, longer than the limit"
    sql = "SELECT tool, state, hung_epochs, epoch FROM tool_calls WHERE turn_id = ANY($1) ORDER BY tool"
    rows = await harness.rows(sql, [nods.turn_id, lingers.turn_id, matches.turn_id])
    assert [tuple(row)[:3] for row in rows] == [
        ("linger", "done", []), ("match", "failed", [1, 2]), ("nod", "outcome_unknown", [1]),
    ]  # fmt: skip
    (said,) = await harness.event_data(nods.turn_id, "tool.error")
    assert said["known"]["code"] == "worker_hung" and said["effect"] == effect_key(nods.turn_id, "t1.0")
