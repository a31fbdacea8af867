"""Lines of the children: on the terminal, in files, of any bytes."""

import asyncio
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.local import output as module
from perdure.local.output import Console, Excerpt, FloodFilter, LogFile, read_lines

LOST = "relay_waits_for_postgres error=ConnectionRefusedError"
SECOND = ["starting: OSError: second"]
FAILED = "Failed: ZeroDivisionError: division by zero"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


async def lines_of(*chunks: bytes) -> list[str]:
    stream = asyncio.StreamReader()
    for chunk in chunks:
        stream.feed_data(chunk)
    stream.feed_eof()
    return [line async for line in read_lines(stream)]


async def test_lines_are_complete_for_any_chunks_and_any_bytes() -> None:
    assert await lines_of(b"on", b"e\ntwo\r\n", b"\nlast") == ["one", "two", "", "last"]
    assert await lines_of(b"\xff\xfe ok\n") == ["\ufffd\ufffd ok"]


@pytest.mark.parametrize("ending", [b"", b"\nnext"])
async def test_an_endless_line_is_split_without_loss(ending: bytes) -> None:
    lines = await lines_of(b"x" * 200_000, ending)
    assert "".join(line for line in lines if line != "next") == "x" * 200_000
    assert max(map(len, lines)) <= 32 * 1024


def test_output_has_prefixes_and_a_terminal_has_optional_colors() -> None:
    out, coloured, plain = io.StringIO(), Terminal(), Terminal()
    console = Console(out, {})
    console.child("api", "hello")
    console.part("postgres", "ready", 0.94, "127.0.0.1:1")
    assert out.getvalue() == "api              | hello\n  postgres         ready    0.9 s   127.0.0.1:1\n"
    Console(coloured, {}).child("api", "hello")
    Console(plain, {"NO_COLOR": "1"}).child("api", "hello")
    assert "\x1b[" in coloured.getvalue() and "\x1b[" not in plain.getvalue()


def test_progress_on_a_terminal_replaces_itself_and_yields_to_lines() -> None:
    out = Terminal()
    console = Console(out, {"NO_COLOR": "1"})
    console.live("step 1")
    console.live("step 2")
    console.say("a line")
    assert out.getvalue() == "step 1\r\x1b[2Kstep 2\r\x1b[2Ka line\n"
    out = Terminal()
    console = Console(out, {"NO_COLOR": "1"})
    console.waiting("waiting for api")
    console.live("building")
    console.waiting("waiting for api")
    console.end_live()
    assert out.getvalue() == "waiting for api\r\x1b[2Kbuilding\r\x1b[2K"
    file = io.StringIO()
    console = Console(file, {})
    for step in range(100):
        console.live(f"step {step}")
    assert file.getvalue() == "step 0\n", "without a terminal an occasional line"


def test_a_closed_terminal_silences_the_console_and_stops_nothing() -> None:
    console = Console(Closed(), {})
    console.say("one")
    console.child("api", "two")


def test_a_log_keeps_every_line_and_the_previous_run(tmp_path: Path) -> None:
    path = tmp_path / "api.log"
    for run in ("first", "second"):
        log = LogFile(path)
        log.write(f"{run} \ufffd line")
        log.close()
    assert path.read_text() == "second \ufffd line\n"
    assert (tmp_path / "api.log.1").read_text() == "first \ufffd line\n"


def test_a_log_has_a_bounded_size(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "api.log", limit_bytes=1000)
    for number in range(1000):
        log.write(f"line {number}")
    log.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2200
    assert log.tail[-1] == "line 999"


def test_a_flood_shows_its_first_lines_and_counts_the_rest_less_and_less_often() -> None:
    flood, shown, said = FloodFilter(0.0), [], []
    for tick in range(600):
        now = tick / 10
        if flood.seconds_left(now) <= 0:
            said.append((now, re.findall(r"\d+", flood.start_next_window(now))))
        if flood.admits(f"ERROR: no room in block {tick}"):
            shown.append(tick)
        else:
            flood.omit()
    assert said == [(10.0, ["95", "10"]), (30.0, ["198", "20"])]
    assert shown == [0, 1, 2, 3, 4, 100, 101, 300, 301]


def test_different_lines_have_a_higher_limit_and_a_quiet_window_resets_it() -> None:
    flood = FloodFilter(0.0)
    assert [number for number in range(50) if flood.admits("x" * number)] == list(range(20))
    flood = FloodFilter(0.0)
    for _ in range(30):
        _ = flood.admits("away") or flood.omit()
    assert re.findall(r"\d+", flood.start_next_window(10.0)) == ["25", "10"]
    assert flood.admits("back") and flood.start_next_window(30.0) == ""
    assert [flood.admits("away") for _ in range(6)] == [True] * 5 + [False]


async def test_omitted_lines_are_reported_even_if_no_other_line_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WINDOW_SECONDS", 0.3)
    out = io.StringIO()
    console = Console(out, {})
    console.logs = Path("/data/logs")
    for number in range(417):
        console.child("postgres", f"PANIC:  could not write to file 17.{number}: No space left on device")
        console.child("api", "one") if number == 7 else None
    await asyncio.sleep(0.8)
    lines = out.getvalue().splitlines()
    assert len(lines) == 7
    assert lines[-1].startswith("postgres ") and "412" in lines[-1] and "/data/logs/postgres.log" in lines[-1]
    assert "api              | one" in lines


def test_lines_about_a_full_disk_are_counted_and_not_shown() -> None:
    out, full = io.StringIO(), "ERROR database or disk is full (13)"
    console, is_full = Console(out, {}), False
    console.disk_is_full = lambda: is_full
    console.child("temporal", full)
    is_full = True
    console.child("temporal", full)
    console.child("postgres", "PANIC:  could not write: No space left on device")
    console.child("temporal", "ERROR something else")
    assert said_in(out) == [full, "ERROR something else"]


def said_in(out: io.StringIO) -> list[str]:
    """What the children said, without their names."""
    return [line.partition(" | ")[2] for line in out.getvalue().splitlines()]


async def test_lines_about_a_part_that_returns_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_OUTAGE_CHECK_SECONDS", 0.05)
    out, away = io.StringIO(), set[str]()
    console = Console(out, {})
    console.logs = Path("/data/logs")
    console.outage.down_roles = lambda: away
    console.child("relay", LOST)
    away.add("postgres")
    for _ in range(3):
        console.child("relay", LOST)
    console.child("api", f"{LOST}: 1")
    console.child("relay", "turn_not_compared")
    await asyncio.sleep(0.2)
    shown = [f"relay            | {LOST}", "relay            | turn_not_compared"]
    assert out.getvalue().splitlines() == shown
    away.clear()
    await asyncio.sleep(0.2)
    *before, told = out.getvalue().splitlines()
    assert before == shown and re.findall(r"(\d+) of (\w+)", told) == [("3", "relay"), ("1", "api")]
    assert "/data/logs" in told
    away.add("postgres")
    console.child("relay", LOST)
    assert out.getvalue().splitlines() == [*shown, told], "the next outage is quiet, too"


async def test_an_outage_that_lasts_is_shown_after_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_OUTAGE_CHECK_SECONDS", 0.05)
    monkeypatch.setattr(module, "_OUTAGE_GRACE_SECONDS", 0.3)
    out = io.StringIO()
    console = Console(out, {})
    console.outage.down_roles = lambda: {"worker-llm"}
    console.child("relay", LOST)
    assert out.getvalue() == ""
    await asyncio.sleep(0.5)
    console.child("relay", LOST)
    told, line = out.getvalue().splitlines()
    assert re.findall(r"(\d+) of (\w+)", told) == [("1", "relay")] and line == f"relay            | {LOST}"


def test_lines_of_a_child_that_is_down_are_shown_even_if_another_is_down() -> None:
    out, away = io.StringIO(), {"worker-llm"}
    console = Console(out, {})
    console.outage.down_roles = lambda: away
    last, exited = "said before it died: ConnectionRefusedError: last", "exited with 1; starting it again in 4.0 s"
    console.child("worker-turns", "said before it died: ConnectionRefusedError: first")
    console.child("worker-turns", last)
    assert out.getvalue() == ""
    away.add("worker-turns")
    console.child("worker-turns", exited)
    console.child("worker-turns", LOST)
    assert said_in(out) == [last, exited, LOST]


def test_childrens_app_lines_are_hidden_while_another_part_reports() -> None:
    out = io.StringIO()
    console = Console(out, {})
    problem = "2026-11-21 [warning  ] app_problem    problem=desk/agents/desk.yaml:3: there is no tool lok"
    console.hides_app_problems = True
    console.child("worker-turns", problem)
    console.child("worker-turns", problem.replace("app_problem", "agents_missing"))
    assert out.getvalue() == ""
    console.hides_app_problems = False
    console.child("worker-turns", problem)
    assert said_in(out) == [problem]


def lines_kept(*lines: str) -> list[str]:
    """What is left of these lines, as they come from one child."""
    out: list[str] = []

    async def take() -> None:
        taken = Excerpt(out.append)
        for line in lines:
            taken.take(line)
        taken.close()

    asyncio.run(take())
    return out


def written_by(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).splitlines()


@pytest.mark.parametrize(("code", "left"), [
    ("import logging\ntry: 1 / 0\nexcept Exception: logging.getLogger().warning('Failed', exc_info=1)", [FAILED]),
    ("import logging as it\nit.basicConfig(level=20)\ntry: 1 / 0\nexcept Exception: it.info('Failed', exc_info=1)",
     [f"INFO:root:{FAILED}"]),
    ("print('starting')\ntry: 1 / 0\nexcept Exception as error: raise OSError('second')", SECOND),
    ("print('starting')\ntry: 1 / 0\nexcept Exception as error: raise OSError('second') from error", SECOND),
], ids=["logged", "as information", "a chain", "a cause"])  # fmt: skip
def test_a_traceback_is_one_line_of_its_last_exception_and_the_line_before_it(code: str, left: list[str]) -> None:
    lines = written_by(code)
    assert len(lines) > 3
    assert lines_kept("before", "", *lines) == ["before", "", *left]


def test_lines_after_a_traceback_are_shown_and_an_incomplete_one_shows_its_first_line() -> None:
    begun = ["Failed", "Traceback (most recent call last):", '  File "x.py", line 1, in <module>']
    assert lines_kept(*begun, "ZeroDivisionError: division by zero", "after") == [FAILED, "after"]
    assert lines_kept(*begun) == ["Failed"]


def test_a_traceback_drawn_in_a_box_is_one_line_too() -> None:
    code = "import structlog\ntry: 1 / 0\nexcept Exception: structlog.get_logger().exception('unforeseen', part='x')"
    lines = written_by(code)
    assert len(lines) > 4
    (line,) = lines_kept(*lines)
    assert "unforeseen" in line and line.endswith("ZeroDivisionError: division by zero")


def test_a_repeated_warning_is_shown_again_after_a_quiet_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = [f"2026-11-21 13:48:{at} [warning  ] relay_waits error=ConnectionRefusedError" for at in range(20, 40)]
    fatal = [f"2026-11-21 13:48:20.1{pid} UTC [246{pid}] FATAL:  terminating connection" for pid in range(10, 20)]
    assert lines_kept(*lost, *fatal) == [lost[0], fatal[0]]
    monkeypatch.setattr(module, "_REPEAT_SECONDS", 0.0)
    assert lines_kept("ERROR: away", "ERROR: away") == ["ERROR: away", "ERROR: away"]


@pytest.mark.parametrize("line", [
    "INFO:     Uvicorn running on http://127.0.0.1:8080 (Press CTRL+C to quit)",
    "2026-11-26 01:47:15 [info     ] worker_ready                   queues=['llm']",
    "2026-11-26 01:47:15 [debug    ] looked", "INFO  [alembic.runtime.migration] Context impl PostgresqlImpl.",
    "12:00:01 - LiteLLM:INFO: utils.py:1 - \x1b[92mcalled",
    "[11/26/26 01:48:15] INFO     Processing request of type ListTools", "INFO:root:started",
    "2026-11-26 01:47:15,123 - httpx - INFO - HTTP Request: GET /", "time=2026-11-26T01:48:53.843 level=INFO msg=x",
])  # fmt: skip
def test_information_lines_are_not_shown(line: str) -> None:
    assert lines_kept(line, "ERROR: after") == ["ERROR: after"]


@pytest.mark.parametrize("lines", [
    ["one", "", "  indented", "one", "one"],
    [f"2026-11-21 13:48:20 [warning  ] turn_not_compared turn_id={number}" for number in range(5)],
    ["WARNING: low on INFO"], ["the INFO desk is closed"], ["Information for you"],
    ["2026-11-26 01:47:15 [warning  ] info"],
], ids=["plain", "warnings that differ", *("it names information",) * 4])  # fmt: skip
def test_all_other_lines_are_shown_unchanged(lines: list[str]) -> None:
    assert lines_kept(*lines) == lines


async def test_a_line_is_shown_without_waiting_for_the_next() -> None:
    shown_line: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    Excerpt(shown_line.set_result).take("ready")
    assert await asyncio.wait_for(shown_line, 20) == "ready"
