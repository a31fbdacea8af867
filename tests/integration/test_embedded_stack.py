"""The whole stack as a person meets it: one foreground process, with small programs in the place of ours."""

import asyncio
import json
import os
import signal
import socket
import stat
import sys
import textwrap
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from perdure.local import embedded
from perdure.local.ports import HOST, free_port
from perdure.local.processes import alive
from tests.eventually import until

ROOT = Path(__file__).parents[2]
SETUP_CODE = "ABCD-EFGH-IJKL-MNOP-QRST-UVWX-YZ23-4567"

PROGRAMS = {
    "driver.py": """
        import asyncio, os, socket, sys
        from pathlib import Path
        from perdure.local import Program, StackConfig, StackError, run_stack
        from perdure.local.ports import PortFile
        here, python = Path(sys.argv[1]), sys.executable
        def program(role, name, *rest): return Program(role, (python, "-S", str(here / name), role, *rest))
        given = StackConfig.from_env()
        config = StackConfig(
            home=given.home, port=given.port, environ=given.environ, app_dirs=given.app_dirs,
            prepare=(python, "-S", str(here / "prepare.py")),
            programs=(
                Program("api", (python, "-S", str(here / "app" / "serve.py")), ready="http"),
                *(program(f"worker-{name}", "work.py") for name in ("turns", "llm", "relay")),
            ),
        )
        take, lost = PortFile.take, {name: socket.socket() for name in os.environ.get("LOST_PORTS", "").split()}
        def take_and_lose(ports, name):
            port = take(ports, name)
            for each, number in ((name, port), ("api", config.port)):
                if each in lost and not lost[each].getsockname()[1]:
                    # a port that a closed connection has had (TIME_WAIT) is free for the stack too
                    lost[each].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    lost[each].bind(("127.0.0.1", number))
                    lost[each].listen()
            return port
        PortFile.take = take_and_lose
        try:
            code = asyncio.run(run_stack(config))
        except StackError as error:
            print(error, file=sys.stderr)
            code = error.exit_code
        sys.exit(code)
        """,
    "prepare.py": """
        import json, os, sys, time
        from pathlib import Path
        if os.environ.get("SLOW_PREPARE"):
            (Path(os.environ["PERDURE_HOME"]) / "prepare-began").touch()
            time.sleep(60)
        if os.environ.get("BREAK_PREPARE"):
            print("relation does not exist", *sys.argv[1:], file=sys.stderr)
            sys.exit(7)
        names = [name for name in os.environ if name.endswith("_URL") or name.startswith(("PERDURE_", "TEMPORAL_"))]
        (Path(os.environ["PERDURE_HOME"]) / "prepare-saw.json").write_text(json.dumps(sorted(names)))
        print("migrated", file=sys.stderr)
        tokens = {"requester": "t-req", "reviewer": "t-rev", "admin": "t-adm"}
        code = "ABCD-EFGH-IJKL-MNOP-QRST-UVWX-YZ23-4567"
        (Path(os.environ["PERDURE_HOME"]) / "setup.code").write_text(code + "\\n")
        left_out = ["the app x is left out:", "  a -> b -> a"]
        line = {"tokens": tokens, "left_out": left_out, "setup_code": code}
        if seconds := os.environ.get("CODE_SECONDS"):
            from datetime import UTC, datetime, timedelta
            line["setup_code_expires_at"] = (datetime.now(UTC) + timedelta(seconds=float(seconds))).isoformat()
        print(json.dumps(line))
        """,
    "app/serve.py": """
        import os, threading, time
        from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
        from pathlib import Path
        port, body = os.environ.get("PAYMENTS_PORT"), b""
        def beat():
            while True:
                Path(os.environ["PERDURE_READY_FILE"]).touch()
                time.sleep(1)
        if port:
            store = Path(os.environ["PERDURE_COMPANION_HOME"]) / "starts"
            store.write_text((store.read_text() if store.exists() else "") + "x")
            body = store.read_bytes()
        else:
            threading.Thread(target=beat, daemon=True).start()
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200 if self.path in ("/", "/readyz", "/healthz") else 404)
                self.end_headers()
                self.wfile.write(body)
            def log_message(self, *_): pass
        ThreadingHTTPServer(("127.0.0.1", int(port or os.environ["PERDURE_PORT"])), Handler).serve_forever()
        """,
    "work.py": """
        import json, os, signal, sys, time
        from pathlib import Path
        role, home = sys.argv[1], Path(os.environ["PERDURE_HOME"])
        def drain(*_):
            print(f"{role} stops", flush=True)
            time.sleep(float(os.environ.get("DRAIN", "0.1")))
            print(f"{role} drained", flush=True)
            os._exit(0)
        signal.signal(signal.SIGTERM, drain)
        (home / f"{role}-saw.json").write_text(json.dumps(dict(os.environ)))
        Path(os.environ["PERDURE_READY_FILE"]).touch()
        print(f"{role} polls", flush=True)
        print(f"INFO:     {role} is started", flush=True)
        while True:
            time.sleep(1)
            os.utime(os.environ["PERDURE_READY_FILE"])
        """,
    "app/app.yaml": """
        companions:
          - name: payments
            command: [python, -S, serve.py]
            port_env: PAYMENTS_PORT
            url_env: PAYMENTS_URL
            ready_path: /healthz
        """,
}
Start = Callable[..., Any]


class Stack:
    def __init__(self, folder: Path, process: Process) -> None:
        self.home = folder / "home"
        self.process = process
        self.out = ""
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while chunk := await self.process.stdout.read(65_536):
            self.out += chunk.decode()

    def run(self) -> dict[str, Any]:
        return dict(json.loads((self.home / "run.json").read_text()))

    async def up(self) -> dict[str, Any]:
        await until(lambda: (self.home / "run.json").exists() or self.process.returncode is not None, seconds=60)
        assert self.process.returncode is None, await self.wait_ended()
        return self.run()

    async def wait_ended(self) -> tuple[int, str, str]:
        assert self.process.stderr is not None
        said = (await self.process.stderr.read()).decode()
        await self._reading
        return await self.process.wait(), self.out, said


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Starts stacks on one data folder; whatever still runs at the end is killed."""
    for name, text in PROGRAMS.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
    (tmp_path / "app" / "agents").mkdir()
    port = str(free_port())
    home, app = str(tmp_path / "home"), str(tmp_path / "app")
    given = {"PYTHONPATH": str(ROOT), "PERDURE_HOME": home, "PERDURE_PORT": port, "PERDURE_APP": app}
    started: list[Stack] = []

    async def start_one(**environ: str) -> Stack:
        command = (sys.executable, str(tmp_path / "driver.py"), str(tmp_path))
        process = await asyncio.create_subprocess_exec(
            *command, env={**os.environ, **given, **environ}, stdout=PIPE, stderr=PIPE
        )
        started.append(Stack(tmp_path, process))
        return started[-1]

    yield start_one
    for stack in started:
        if stack.process.returncode is None:
            stack.process.kill()
        await stack.wait_ended()


@pytest.fixture
async def replaced(tmp_path: Path) -> AsyncIterator[dict[str, str]]:
    """An environment that replaces all three data parts by ports that answer: for what does not concern data."""
    servers = [await asyncio.start_server(lambda _reader, writer: writer.close(), HOST, 0) for _ in range(3)]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    yield {
        "DATABASE_URL": f"postgresql://u:p@{HOST}:{ports[0]}/d",
        "REDIS_URL": f"redis://{HOST}:{ports[1]}/0",
        "TEMPORAL_ADDRESS": f"{HOST}:{ports[2]}",
        "TEMPORAL_NAMESPACE": "elsewhere",
    }
    for server in servers:
        server.close()
        await server.wait_closed()


async def test_an_expired_setup_code_leaves_run_json_and_is_reported(start: Start, replaced: dict[str, str]) -> None:
    stack: Stack = await start(**replaced, CODE_SECONDS="15")
    assert (await stack.up())["setup_code"] == SETUP_CODE
    before = stack.out
    await until(lambda: "setup_code" not in stack.run(), seconds=60)
    assert not (stack.home / "setup.code").exists()
    await until(lambda: "expired" in stack.out.removeprefix(before), seconds=10)


async def test_a_stack_starts_prints_its_address_and_stops_in_order(start: Start) -> None:
    stack: Stack = await start()
    run = await stack.up()
    roles = {"postgres", "valkey", "temporal", "payments", "api", "worker-turns", "worker-llm", "worker-relay"}
    assert set(run["pids"]) == roles
    assert run["tokens"] == {"requester": "t-req", "reviewer": "t-rev", "admin": "t-adm"}
    assert run["supervisor"] == stack.process.pid
    assert run["postgres"].startswith("postgresql://perdure_app:")
    assert stat.S_IMODE((stack.home / "run.json").stat().st_mode) == 0o600
    async with httpx.AsyncClient() as http:
        assert (await http.get(run["api"] + "/readyz")).status_code == 200
        assert (await http.get(run["temporal_ui"], follow_redirects=True)).status_code == 200
        assert (await http.get(run["companions"]["payments"])).text == "x"
    saw = json.loads((stack.home / "worker-llm-saw.json").read_text())
    assert (saw["DATABASE_URL"], saw["REDIS_URL"]) == (run["postgres"], run["redis"])
    assert (saw["TEMPORAL_ADDRESS"], saw["PERDURE_TEMPORAL_UI"]) == (run["temporal"], run["temporal_ui"])
    assert saw["PAYMENTS_URL"] == run["companions"]["payments"]
    assert "DATABASE_ADMIN_URL" not in saw
    assert "DATABASE_ADMIN_URL" in json.loads((stack.home / "prepare-saw.json").read_text())
    assert run["setup_code"] == SETUP_CODE
    (stack.home / "setup.code").unlink()  # as the API does when the first user registers
    await until(lambda: "setup_code" not in stack.run(), seconds=60)
    assert {**stack.run(), "setup_code": SETUP_CODE} == run, "and nothing else has changed"
    stack.process.send_signal(signal.SIGINT)
    code, out, said = await stack.wait_ended()
    assert (code, said) == (0, "")
    assert not (stack.home / "run.json").exists()
    assert SETUP_CODE in out
    assert "INFO" not in out and "INFO:" in (stack.home / "logs" / "worker-llm.log").read_text()
    assert not [role for role, pid in run["pids"].items() if alive(pid)]
    for role in roles - {"api"}:
        assert sum(line.split()[:2] == [role, "ready"] for line in out.splitlines()) == 1
    assert run["left_out"] == ["the app x is left out:", "  a -> b -> a"]
    assert "\n  the app x is left out:\n    a -> b -> a\n" in out
    for shown in (run["api"], run["temporal_ui"], "t-req", "t-rev", "t-adm", "worker-llm       | worker-llm drained"):
        assert shown in out
    assert run["postgres"] not in out and run["redis"] not in out


async def test_a_killed_process_is_back_at_once_and_run_json_names_the_new_one(start: Start) -> None:
    stack: Stack = await start()
    run = await stack.up()
    await asyncio.sleep(1.1)
    for role, pid in run["pids"].items():
        os.kill(pid, signal.SIGKILL)

        def is_back(role: str = role, pid: int = pid) -> bool:
            now = stack.run()
            return now["pids"].get(role) not in (None, pid) and role in now["ready"]

        await until(is_back, seconds=60)
    at_once = [line.split()[0] for line in stack.out.splitlines() if "SIGKILL" in line and "0.1" in line]
    assert at_once == list(run["pids"])
    async with httpx.AsyncClient() as http:
        assert (await http.get(run["companions"]["payments"])).text == "xx"
    changing = ("pids", "ready", "ports")  # of Temporal's ports three are new in each life
    before = {name: value for name, value in run.items() if name not in changing}
    assert {name: value for name, value in stack.run().items() if name not in changing} == before


async def test_a_replaced_part_is_not_started_nor_is_a_second_stack(start: Start, replaced: dict[str, str]) -> None:
    stack: Stack = await start(**replaced)
    run = await stack.up()
    assert set(run["pids"]) == {"payments", "api", "worker-turns", "worker-llm", "worker-relay"}
    assert (run["postgres"], run["redis"]) == (replaced["DATABASE_URL"], replaced["REDIS_URL"])
    assert run["temporal"] == replaced["TEMPORAL_ADDRESS"]
    assert json.loads((stack.home / "worker-llm-saw.json").read_text())["TEMPORAL_NAMESPACE"] == "elsewhere"
    for part in ("pg", "valkey", "temporal.db"):
        assert not (stack.home / part).exists()
    code, out, said = await (await start(**replaced)).wait_ended()
    assert (code, out, said.count("\n")) == (2, "", 1)
    assert run["api"] in said and stack.run() == run


async def test_after_kill_9_of_the_supervisor_the_next_start_keeps_its_addresses(start: Start) -> None:
    first: Stack = await start()
    run = await first.up()
    listed = json.loads((first.home / "children.json").read_text())
    first.process.kill()
    await first.process.wait()
    assert (first.home / "run.json").exists()
    await until(lambda: not any(alive(pid) for pid in run["pids"].values()), seconds=60)
    # As on a system whose kernel does not end children with their parent: the record alone must do.
    outlived = await asyncio.create_subprocess_exec("sleep", "60")
    began = psutil.Process(outlived.pid).create_time()
    listed.append({"role": "worker-x", "pid": outlived.pid, "signal": 9, "started_at": began})
    (first.home / "children.json").write_text(json.dumps(listed))
    second: Stack = await start()
    assert await asyncio.wait_for(outlived.wait(), 30) == -9
    await until(lambda: (second.home / "run.json").exists() and second.run()["supervisor"] == second.process.pid, 60)
    await until(lambda: "worker-x" in second.out, seconds=60)
    for name in ("api", "temporal", "temporal_ui", "postgres", "redis", "companions"):
        assert second.run()[name] == run[name]


@pytest.mark.timed
async def test_a_second_ctrl_c_kills_the_parts_that_still_drain(start: Start, replaced: dict[str, str]) -> None:
    stack: Stack = await start(DRAIN="25", **replaced)
    run = await stack.up()
    stack.process.send_signal(signal.SIGINT)
    await until(lambda: "worker-llm stops" in stack.out)
    assert alive(run["pids"]["worker-llm"])
    stack.process.send_signal(signal.SIGINT)
    began = time.monotonic()
    code, _, _ = await stack.wait_ended()
    assert code == 130 and time.monotonic() - began < 3
    assert not [role for role, pid in run["pids"].items() if alive(pid)]


@pytest.mark.parametrize(("how", "there"), [(signal.SIGTERM, "children.json"), (signal.SIGINT, "prepare-began")])
async def test_a_signal_at_the_start_stops_all_without_traceback(start: Start, how: signal.Signals, there: str) -> None:
    stack: Stack = await start(SLOW_PREPARE="1")
    await until((stack.home / there).exists, seconds=60)
    pids = [record["pid"] for record in json.loads((stack.home / "children.json").read_text())]
    stack.process.send_signal(how)
    code, _, said = await stack.wait_ended()
    assert (code, said) == (0, "")
    assert pids and not [pid for pid in pids if alive(pid)]


async def test_a_taken_port_is_one_clear_line_and_nothing_was_started(start: Start, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        port = str(other.getsockname()[1])
        code, _, said = await (await start(PERDURE_PORT=port)).wait_ended()
    assert code == 1 and port in said and said.count("\n") == 1
    assert not (tmp_path / "home").exists()


async def test_all_parts_learn_the_port_that_replaces_a_lost_one(start: Start) -> None:
    stack: Stack = await start(LOST_PORTS="temporal companion-payments")
    run = await stack.up()
    saw = json.loads((stack.home / "worker-llm-saw.json").read_text())
    assert (saw["TEMPORAL_ADDRESS"], saw["PAYMENTS_URL"]) == (run["temporal"], run["companions"]["payments"])
    assert {"temporal", "companion-payments"} <= set(run["ports"])


async def test_the_setting_of_a_lost_port_is_named(start: Start, replaced: dict[str, str]) -> None:
    stack: Stack = await start(LOST_PORTS="api", **replaced)
    code, _, said = await stack.wait_ended()
    assert code == 1 and "PERDURE_PORT" in said and said.count("\n") == 1
    assert not (stack.home / "logs" / "api.log.1").exists(), "another start would not help"


async def test_a_failing_prepare_step_learns_of_a_lost_history_and_ends_the_start(start: Start, tmp_path: Path) -> None:
    async with embedded(tmp_path / "home", {"postgres"}):
        pass
    history = tmp_path / "home" / "temporal.db"
    code, _, said = await (await start(BREAK_PREPARE="1")).wait_ended()
    assert code == 1 and "7" in said and f"--lost-history {history}" in said
    assert json.loads((tmp_path / "home" / "children.json").read_text()) == [] and not history.exists()
    history.touch()  # an empty one is as good as none, and no obstacle
    stack: Stack = await start()
    await stack.up()
    assert history.stat().st_size
