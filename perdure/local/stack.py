"""The two ways to run: the whole stack in the foreground (`perdure up`), or only the data parts (tests, benchmark).

Start order: Postgres, Valkey, Temporal and the app services together; the prepare step when the two stores respond. The
programs start in parallel with it: they import, which is most of their start, and wait for the gate file, which is
written when all of that is done. Stop order: programs, app services, Temporal, Valkey, Postgres.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from perdure.local import programs
from perdure.local.config import ROOT, StackConfig, addresses, own_environ
from perdure.local.data_dir import Credentials, DataDir, RunFile, folder_errors, lock_home, open_home
from perdure.local.output import Console
from perdure.local.ports import HOST, SUPERVISOR, PortFile, PortInUse, configured_port_in_use, is_free, listening_ports
from perdure.local.services import ALL_PARTS, DataParts, load_checked_credentials, start_data, without_addresses
from perdure.local.supervisor import Supervisor, run_together
from perdure.local.welcome import Welcome, no_app

_Started = TypeVar("_Started")
_SETUP_CODE_SECONDS = 1.0
_PROGRESS_SECONDS = 1.0
_PLAIN_PROGRESS_SECONDS = 15.0
_STARTS = 3
"""The number of starts if other processes take ports of this one."""
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@asynccontextmanager
async def embedded(
    home: str | Path,
    parts: frozenset[str] | set[str] = ALL_PARTS,
    *,
    environ: Mapping[str, str] | None = None,
    console: Console | None = None,
) -> AsyncIterator[DataParts]:
    """Runs only the data parts until the block ends; the environment never replaces them.

    It must be entered from a thread that lives until its end: the kernel ends the parts with that thread.

    Raises: StackError.
    """
    given = own_environ() if environ is None else environ
    chosen = frozenset(parts)
    out = console or Console(None)
    with folder_errors(Path(home)):
        opened = open_home(Path(home))

    async def start() -> tuple[Supervisor, DataParts]:
        supervisor = Supervisor(opened, out)
        try:
            port_file = PortFile(opened.ports_file)
            credentials = load_checked_credentials(opened, given, parts=chosen, overridable=False)
            data = await start_data(supervisor, opened, port_file, given, credentials, parts=chosen, overridable=False)
        except BaseException:
            await supervisor.stop()
            raise
        return supervisor, data

    with lock_home(opened):
        with folder_errors(opened.root):
            supervisor, data = await _with_other_ports(start, out)
        try:
            yield data
        finally:
            await supervisor.stop()


async def _with_other_ports(start: Callable[[], Awaitable[_Started]], console: Console) -> _Started:
    """Runs `start`, and again while another process takes a port between its choice and its use. No part that has an
    old address survives, because `start` stops all parts if it fails.

    Raises: PortInUse if that happens three times; the errors of `start`.
    """
    for _ in range(_STARTS - 1):
        try:
            return await start()
        except PortInUse as error:
            console.say(f"  {error}")
    return await start()


async def run_stack(config: StackConfig) -> int:
    """Runs everything until Ctrl-C or SIGTERM; a second one kills. Returns the exit code of `perdure up`.

    Raises: StackError if it cannot start; every started part has been stopped by then.
    """
    with folder_errors(config.home):
        return await _run(config)


async def _run(config: StackConfig) -> int:
    console = Console(sys.stdout, config.environ)
    if not config.home.exists():
        _check_port(config.port)  # before a folder is created for nothing
    home = open_home(config.home)
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            hurry.set()
        stop.set()

    loop = asyncio.get_running_loop()
    with lock_home(home):
        home.run_file.unlink(missing_ok=True)  # from a supervisor that was killed
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, on_signal)
        console.say(f"Starting Perdure; data is in {home.root}")
        try:
            await _with_other_ports(lambda: _run_once(config, home, console, stop, hurry), console)
        finally:
            for number in _STOP_SIGNALS:
                loop.remove_signal_handler(number)
    return 130 if hurry.is_set() else 0


async def _run_once(
    config: StackConfig, home: DataDir, console: Console, stop: asyncio.Event, hurry: asyncio.Event
) -> None:
    """Starts everything and keeps it running until `stop` is set or a part fails; then stops all parts."""
    supervisor = Supervisor(home, console, config.limits, config.least_free_bytes)
    try:
        await _run_until(stop, _run_all(config, home, supervisor))
    finally:
        reason = (
            "Stopping; a second Ctrl-C kills the remaining processes."
            if stop.is_set()
            else "The start failed or a part cannot run; stopping the rest."
        )
        await _stop_all(home, supervisor, hurry, reason)


async def _run_until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Does the work, or cancels it when `stop` is set."""
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


async def _stop_all(home: DataDir, supervisor: Supervisor, hurry: asyncio.Event, reason: str) -> None:
    if not supervisor.children:
        return
    started_at = time.monotonic()
    supervisor.console.say()
    supervisor.console.say(reason)
    await supervisor.stop(hurry)
    home.run_file.unlink(missing_ok=True)  # last: while it exists, parts of this stack may still run
    took = time.monotonic() - started_at
    supervisor.console.say(f"Stopped in {took:.1f} s. The data is kept in {home.root}.")


async def _run_all(config: StackConfig, home: DataDir, supervisor: Supervisor) -> None:
    """Starts everything, then watches the children and the setup code."""
    prepared = await _start_all(config, home, supervisor)
    await run_together(supervisor.watch(), _watch_setup_code(home, supervisor, prepared.setup_code_expires_at))


async def _start_all(config: StackConfig, home: DataDir, supervisor: Supervisor) -> programs.BootstrapLine:
    """Starts everything until all of it is healthy and run.json is written. Returns the result of the prepare step.

    Raises: StackError.
    """
    started_at = time.monotonic()
    _check_port(config.port)
    if shared := programs.shared_imports(config):
        await supervisor.open_fork_server(shared, {**config.environ, "PYTHONUNBUFFERED": "1"}, ROOT)
    credentials = load_checked_credentials(home, config.environ, overridable=True)
    port_file = PortFile(home.ports_file, reserved=(config.port,))
    services = _AppServices.of(config, home, port_file)
    home.gate_file.unlink(missing_ok=True)
    supervisor.console.say(f"Starting; the log of each part is in {home.logs}.")
    supervisor.console.hides_app_problems = True  # by the prepare step and the last block
    start = _Start(config, home, supervisor, port_file, credentials, services)
    async with _progress(supervisor, started_at):
        await run_together(start.open_gate(), start.launch_programs())
        run_file = start.run_file()
        supervisor.on_change = _run_file_writer(run_file, supervisor, {**port_file.names(), config.port: "api"})
        supervisor.on_change()
        found = await addresses(config.pages, config.port, start.prepared.tokens)
    welcome = start.welcome([address for _, address in found], time.monotonic() - started_at)
    supervisor.console.say(f"\n{welcome.text()}\n")
    supervisor.console.hides_app_problems = False
    return start.prepared


@dataclass(frozen=True, slots=True)
class _AppServices:
    """The app services with their ports."""

    declared: Sequence[tuple[Path, programs.AppService]]
    ports: Mapping[str, int]
    environ: Mapping[str, str]
    """Their addresses and tokens for the programs."""

    @classmethod
    def of(cls, config: StackConfig, home: DataDir, port_file: PortFile) -> "_AppServices":
        """Reads what the apps declare.

        Raises: StackError.
        """
        declared = programs.read_all_app_services(config.apps)
        ports = {each.name: programs.take_port(port_file, each) for _, each in declared}
        environ = {each.url_env: programs.app_service_url(ports[each.name]) for _, each in declared}
        for _, each in declared:
            environ |= programs.token_environ(home, each)
        return cls(declared, ports, environ)

    @property
    def urls(self) -> dict[str, str]:
        """The URLs of the app services, by name."""
        return {name: programs.app_service_url(port) for name, port in self.ports.items()}


@dataclass(slots=True)
class _Start:
    """One start of everything: the data parts and app services, then the prepare step and the programs in parallel."""

    config: StackConfig
    home: DataDir
    supervisor: Supervisor
    port_file: PortFile
    credentials: Credentials
    services: _AppServices
    data: DataParts = field(default_factory=DataParts)
    prepared: programs.BootstrapLine = field(default_factory=programs.BootstrapLine)
    _addresses_known: asyncio.Event = field(default_factory=asyncio.Event)
    _temporal_program_found: asyncio.Event = field(default_factory=asyncio.Event)

    async def open_gate(self) -> None:
        """Starts the data parts and the app services, runs the prepare step, and opens the gate for the programs.

        Raises: StackError.
        """
        outside = without_addresses(self.config.environ)
        await run_together(
            start_data(
                self.supervisor,
                self.home,
                self.port_file,
                self.config.environ,
                self.credentials,
                overridable=True,
                when_stores_are_ready=self._bootstrap,
                temporal_program_found=self._temporal_program_found,
            ),
            *(
                self.supervisor.launch(
                    programs.app_service_spec(self.home, app, each, self.services.ports[each.name], outside)
                )
                for app, each in self.services.declared
            ),
        )
        self.home.gate_file.write_text("open\n")

    async def _bootstrap(self, data: DataParts) -> None:
        self.data = data
        self._addresses_known.set()
        if self.config.prepare is None:
            return
        environ = self._environ(data.admin_environ(self.config.environ))
        lost = ("--lost-history", str(data.lost_history)) if data.lost_history else ()
        lines = await self.supervisor.run_once(
            "prepare", (*self.config.prepare, *lost), environ, ROOT, "database and apps are up to date"
        )
        self.prepared = programs.bootstrap_line_from(lines, self.home.log("prepare"))
        if not self.config.apps:
            notices = no_app(self.config.command, self.prepared.kept)
            self.prepared = replace(self.prepared, left_out=(*self.prepared.left_out, *notices))

    async def launch_programs(self) -> None:
        """Starts the programs as soon as all addresses are known; each waits for the gate.

        Raises: StackError.
        """
        # The first download or build of Temporal may take minutes.
        await asyncio.gather(self._addresses_known.wait(), self._temporal_program_found.wait())
        environ = self._environ(self.data.environ(self.config.environ))
        specs = (programs.program_spec(self.config, self.home, each, environ) for each in self.config.programs)
        await run_together(*map(self.supervisor.launch, specs))

    def _environ(self, data: Mapping[str, str]) -> dict[str, str]:
        return programs.environment(self.config, self.home, data, self.services.environ)

    def run_file(self) -> RunFile:
        """Returns the content of run.json for this start."""
        return RunFile(
            path=self.home.run_file,
            addresses=_addresses(self.config, self.data),
            tokens=self.prepared.tokens,
            left_out=self.prepared.left_out,
            companions=self.services.urls,
            supervisor_pid=os.getpid(),
            routing=self.config.routing,
            setup_code_file=self.home.setup_code_file if self.prepared.setup_code else None,
        )

    def welcome(self, pages: Sequence[str], seconds: float) -> Welcome:
        """Returns the text to print; `pages` are the addresses of the configured pages."""
        return Welcome(
            seconds=seconds,
            home=self.home.root,
            logs=self.home.logs,
            command=self.config.command,
            api=f"http://{HOST}:{self.config.port}",
            public_url=self.config.public_url,
            pages=list(zip(self.config.pages, pages, strict=True)),
            temporal_ui=(self.data.temporal.ui or "") if self.data.temporal else "",
            tokens=self.prepared.tokens,
            setup_code=self.prepared.setup_code,
            setup_code_expires_at=self.prepared.setup_code_expires_at,
            left_out=self.prepared.left_out,
        )


@asynccontextmanager
async def _progress(supervisor: Supervisor, started_at: float) -> AsyncIterator[None]:
    """Shows what is being waited for, until the block ends."""
    console = supervisor.console

    async def show() -> None:
        while True:
            await asyncio.sleep(_PROGRESS_SECONDS if console.is_terminal else _PLAIN_PROGRESS_SECONDS)
            if waiting_roles := supervisor.waiting_roles():
                console.waiting(f"  waiting for {', '.join(waiting_roles)} ({time.monotonic() - started_at:.0f} s)")

    task = asyncio.create_task(show())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        console.end_live()


def _run_file_writer(run_file: RunFile, supervisor: Supervisor, names: Mapping[int, str]) -> Callable[[], None]:
    """Returns the writer of run.json: it writes at once after a change, and again if other ports are open, which takes
    longer to determine."""
    ports: dict[str, int] = {}

    def write() -> None:
        run_file.write(supervisor.pids(), supervisor.ready_roles(), ports)

    def ports_found(found: asyncio.Future[dict[str, int]]) -> None:
        nonlocal ports
        if supervisor.is_stopping or found.cancelled() or found.exception() or found.result() == ports:
            return
        ports = found.result()
        with suppress(OSError):  # on a full disk, the supervisor reports it and writes again
            write()

    def changed() -> None:
        nonlocal ports
        pids = {SUPERVISOR: os.getpid(), **supervisor.pids()}
        if not ports:
            ports = listening_ports(pids, names)
            write()
            return
        write()
        asyncio.get_running_loop().run_in_executor(None, listening_ports, pids, names).add_done_callback(ports_found)

    return changed


async def _watch_setup_code(home: DataDir, supervisor: Supervisor, expires_at: datetime | None) -> None:
    """Waits until the setup code ends, then removes it from run.json and reports the reason. The API removes the code's
    file when the tenant gets its administrator."""
    path = home.setup_code_file
    if not path.exists():
        return
    reason = "an administrator has registered"
    while path.exists():
        if expires_at is not None and datetime.now(UTC) >= expires_at:
            path.unlink(missing_ok=True)
            reason = "it has expired; for a new one, stop this stack and start it again"
            break
        await asyncio.sleep(_SETUP_CODE_SECONDS)
    supervisor.changed()
    supervisor.console.say(f"The setup code cannot be used any more: {reason}.")


def _check_port(port: int) -> None:
    if not is_free(port):
        raise configured_port_in_use(port, "PERDURE_PORT")


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
