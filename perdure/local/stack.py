"""The two ways to run: the whole stack in the foreground (`perdure up`), or the data parts alone (tests, benchmark).

Order of starting: Postgres, Valkey, Temporal and the companions at once; the prepare step as soon as the two stores
answer, and the programs beside it: they import, which is most of their start, and wait for the gate file, which is
written when all of that is done. Order of stopping: programs, companions, Temporal, Valkey, Postgres.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from perdure.local import programs
from perdure.local.config import ROOT, StackConfig, addresses, own_environ
from perdure.local.data_dir import Home, RunFile, StackError, hold, its_own, open_home
from perdure.local.output import Console
from perdure.local.ports import HOST, SUPERVISOR, PortBook, is_free, listening
from perdure.local.services import ALL_PARTS, DataParts, checked, start_data, without_addresses
from perdure.local.supervisor import Supervisor, together

_LOOK_SECONDS = 1.0
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NO_AGENT = (
    "No agent is published: no app was asked for. Stop this stack and start it with one:",
    "  perdure up --examples                            the examples that ship",
    "  perdure init my-app && perdure up --app my-app   an app of your own",
)


@asynccontextmanager
async def embedded(
    home: str | Path,
    parts: frozenset[str] | set[str] = ALL_PARTS,
    *,
    environ: Mapping[str, str] | None = None,
    console: Console | None = None,
) -> AsyncIterator[DataParts]:
    """The data parts alone, kept running until the block ends; never replaced by the environment.

    Enter it from a thread that lives until its end: the kernel ends the parts with that thread.

    Raises: StackError.
    """
    given = own_environ() if environ is None else environ
    chosen = frozenset(parts)
    with its_own(Path(home)):
        opened = open_home(Path(home))
    with hold(opened):
        with its_own(opened.root):
            supervisor = Supervisor(opened, console or Console(None))
        try:
            with its_own(opened.root):
                book = PortBook(opened.ports_file)
                credentials = checked(opened, given, parts=chosen, overridable=False)
                data = await start_data(supervisor, opened, book, given, credentials, parts=chosen, overridable=False)
            yield data
        finally:
            await supervisor.stop()


async def run_stack(config: StackConfig) -> int:
    """Run everything until Ctrl-C or SIGTERM; a second one kills. The exit code of `perdure up`.

    Raises: StackError when it cannot start; all that did start has been stopped by then.
    """
    with its_own(config.home):
        return await _run(config)


async def _run(config: StackConfig) -> int:
    console = Console(sys.stdout, config.environ)
    if not config.home.exists():
        _port_must_be_free(config.port)  # before a folder is made for nothing
    home = open_home(config.home)
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            hurry.set()
        stop.set()

    loop = asyncio.get_running_loop()
    with hold(home):
        home.run_file.unlink(missing_ok=True)  # of a supervisor that was killed
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, on_signal)
        console.say(f"Perdure, data in {home.root}")
        supervisor = Supervisor(home, console, config.patience, config.least_free_bytes)
        try:
            await _until(stop, _bring_up(config, home, supervisor))
            await _until(stop, _watch(home, supervisor))
        finally:
            words = "Stopping; once more Ctrl-C kills." if stop.is_set() else "It cannot go on; ending what runs."
            await _wind_down(home, supervisor, hurry, words)
            for number in _STOP_SIGNALS:
                loop.remove_signal_handler(number)
    return 130 if hurry.is_set() else 0


async def _until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Do the work, or leave it when `stop` is set."""
    task = asyncio.create_task(work)
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
    finally:
        stopped.cancel()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _wind_down(home: Home, supervisor: Supervisor, hurry: asyncio.Event, words: str) -> None:
    if not supervisor.children:
        return
    began = time.monotonic()
    supervisor.console.say()
    supervisor.console.say(words)
    await supervisor.stop(hurry)
    home.run_file.unlink(missing_ok=True)  # last: while it is there, something of this stack may still run
    took = time.monotonic() - began
    supervisor.console.say(f"Stopped in {took:.1f} s. The data stays in {home.root}.")


async def _bring_up(config: StackConfig, home: Home, supervisor: Supervisor) -> None:
    """From nothing to everything healthy, with run.json written.

    Raises: StackError.
    """
    began = time.monotonic()
    _port_must_be_free(config.port)
    if shared := programs.shared_imports(config):
        await supervisor.open_nursery(shared, {**config.environ, "PYTHONUNBUFFERED": "1"}, ROOT)
    credentials = checked(home, config.environ, overridable=True)
    book = PortBook(home.ports_file)
    declared = programs.read_all_app_services(config.apps)
    ports = {companion.name: programs.take_port(book, companion) for _, companion in declared}
    urls = {companion.name: programs.app_service_url(ports[companion.name]) for _, companion in declared}
    url_environ = {companion.url_env: urls[companion.name] for _, companion in declared}
    for _, companion in declared:
        url_environ |= programs.token_environ(home, companion)
    outside = without_addresses(config.environ)
    prepared = programs.Prepared()
    home.gate_file.unlink(missing_ok=True)
    addresses_known, temporal_found = asyncio.Event(), asyncio.Event()
    known = DataParts()

    async def prepare(data: DataParts) -> None:
        nonlocal known, prepared
        known = data
        addresses_known.set()
        if config.prepare is None:
            return
        environ = programs.environment(config, home, data.admin_environ(config.environ), url_environ)
        lines = await supervisor.run_once("prepare", config.prepare, environ, ROOT)
        prepared = programs.prepared_from(lines, home.log("prepare"))
        if not config.apps:
            prepared = replace(prepared, left_out=(*prepared.left_out, *NO_AGENT))

    async def open_gate() -> None:
        await together(
            start_data(
                supervisor,
                home,
                book,
                config.environ,
                credentials,
                overridable=True,
                when_stores_answer=prepare,
                temporal_found=temporal_found,
            ),
            *(
                supervisor.launch(programs.app_service_spec(home, app, companion, ports[companion.name], outside))
                for app, companion in declared
            ),
        )
        home.gate_file.write_text("open\n")

    async def launch_programs() -> None:
        await asyncio.gather(addresses_known.wait(), temporal_found.wait())  # a first Temporal may take minutes
        environ = programs.environment(config, home, known.environ(config.environ), url_environ)
        await together(
            *(supervisor.launch(programs.program_spec(config, home, program, environ)) for program in config.programs)
        )

    await together(open_gate(), launch_programs())
    data = known
    run_file = RunFile(
        path=home.run_file,
        addresses=_addresses(config, data),
        tokens=prepared.tokens,
        left_out=prepared.left_out,
        companions=urls,
        supervisor_pid=os.getpid(),
        routing=config.routing,
        setup_code_file=home.setup_code_file if prepared.setup_code else None,
    )
    supervisor.on_change = _run_file_writer(run_file, supervisor, {**book.names(), config.port: "api"})
    supervisor.on_change()
    pages = await addresses(config.pages, config.port, prepared.tokens)
    _welcome(config, data, prepared, pages, supervisor.console, time.monotonic() - began)


def _run_file_writer(run_file: RunFile, supervisor: Supervisor, names: Mapping[int, str]) -> Callable[[], None]:
    """Returns what writes run.json: at once after a change, and again if other ports are open, which takes longer to
    find out."""
    ports: dict[str, int] = {}

    def write() -> None:
        run_file.write(supervisor.pids(), supervisor.ready_roles(), ports)

    def looked(found: asyncio.Future[dict[str, int]]) -> None:
        nonlocal ports
        if supervisor.is_stopping or found.cancelled() or found.exception() or found.result() == ports:
            return
        ports = found.result()
        with suppress(OSError):  # a full disk: the supervisor says so, and writes again
            write()

    def changed() -> None:
        nonlocal ports
        pids = {SUPERVISOR: os.getpid(), **supervisor.pids()}
        if not ports:
            ports = listening(pids, names)
            write()
            return
        write()
        asyncio.get_running_loop().run_in_executor(None, listening, pids, names).add_done_callback(looked)

    return changed


async def _watch(home: Home, supervisor: Supervisor) -> None:
    """Watch the children, and take the setup code out of run.json soon after the API has removed its file."""
    await together(supervisor.watch(), _until_registered(home, supervisor))


async def _until_registered(home: Home, supervisor: Supervisor) -> None:
    is_kept = home.setup_code_file.exists()
    while is_kept:
        await asyncio.sleep(_LOOK_SECONDS)
        is_kept = home.setup_code_file.exists()
        if not is_kept:
            supervisor.changed()


def _port_must_be_free(port: int) -> None:
    if not is_free(port):
        raise StackError(f"port {port} is taken on {HOST}; stop what uses it, or set PERDURE_PORT to another one")


def _addresses(config: StackConfig, data: DataParts) -> dict[str, str | None]:
    temporal, postgres = data.temporal, data.postgres
    return {
        "api": f"http://{HOST}:{config.port}",
        "temporal": temporal.address if temporal else None,
        "temporal_ui": temporal.ui if temporal else None,
        "temporal_metrics": temporal.metrics if temporal else None,
        "postgres": postgres.app if postgres else None,
        "redis": data.redis_url,
    }


def _welcome(
    config: StackConfig,
    data: DataParts,
    prepared: programs.Prepared,
    pages: Sequence[tuple[str, str]],
    console: Console,
    seconds: float,
) -> None:
    """What a newcomer needs next: the addresses, the tokens, and which agents are not there."""
    api = f"http://{HOST}:{config.port}"
    console.say(f"Everything is up after {seconds:.1f} s. Ctrl-C stops it; the data stays.")
    console.say()
    rows = [("API", api), *pages]
    if data.temporal is not None and data.temporal.ui:
        rows.append(("Temporal UI", data.temporal.ui))
    rows += [(f"{role} token", token) for role, token in prepared.tokens.items()]
    if prepared.setup_code:
        rows.append(("setup code", prepared.setup_code))
    width = max(len(label) for label, _ in rows)
    for label, value in rows:
        console.say(f"  {label:<{width}}   {value}")
    if any("?code=" in address for _, address in pages):
        console.say("  A link signs you in once, within 15 minutes; `perdure link` prints another.")
    if prepared.setup_code:
        console.say("  The first person registers with the setup code at /sign-in, once, within 24 hours.")
    console.say()
    for line in prepared.left_out:
        console.say(f"  {line}")
    if prepared.left_out:
        console.say()
