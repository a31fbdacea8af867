"""What the terminal shows of a child's output: one line for a traceback, one for a warning that repeats itself."""

import asyncio
import subprocess
import sys

import pytest

from perdure.local import output
from perdure.local.output import Excerpt


def shown(*lines: str) -> list[str]:
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
    """What Python itself writes on stderr."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr.splitlines()


def test_plain_lines_are_shown_as_they_are_also_when_they_repeat() -> None:
    lines = ["one", "", "  indented", "one", "one"]
    assert shown(*lines) == lines


def test_a_logged_traceback_is_one_line_with_what_was_said_before_it() -> None:
    code = "import logging\ntry: 1 / 0\nexcept Exception: logging.getLogger().warning('Failed', exc_info=True)\nprint()"
    lines = written_by(code)
    assert len(lines) > 3
    assert shown("before", *lines, "after") == ["before", "Failed: ZeroDivisionError: division by zero", "after"]


@pytest.mark.parametrize("raising", ["raise OSError('second')", "raise OSError('second') from error"])
def test_of_a_chain_of_exceptions_the_last_one_is_shown(raising: str) -> None:
    lines = written_by(f"try: 1 / 0\nexcept Exception as error: {raising}")
    assert sum("Traceback" in line for line in lines) == 2
    assert shown("starting", *lines) == ["starting: OSError: second"]


def test_a_traceback_drawn_in_a_box_is_one_line_too() -> None:
    code = "import structlog\ntry: 1 / 0\nexcept Exception: structlog.get_logger().exception('unforeseen', part='x')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) > 4
    (line,) = shown(*lines)
    assert "unforeseen" in line and line.endswith("ZeroDivisionError: division by zero")


def test_a_warning_that_repeats_itself_is_shown_once_whatever_the_time() -> None:
    lines = [
        f"2026-11-21 13:48:{second} [warning  ] relay_waits_for_postgres       error=ConnectionRefusedError"
        for second in range(20, 40)
    ]
    fatal = [f"2026-11-21 13:48:20.1{pid} UTC [246{pid}] FATAL:  terminating connection" for pid in range(10, 20)]
    assert shown(*lines, *fatal) == [lines[0], fatal[0]]


def test_warnings_that_differ_are_all_shown() -> None:
    lines = [f"2026-11-21 13:48:20 [warning  ] turn_not_compared turn_id={number}" for number in range(5)]
    assert shown(*lines) == lines


def test_after_a_quiet_minute_it_is_shown_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_QUIET_SECONDS", 0.0)
    assert shown("ERROR: away", "ERROR: away") == ["ERROR: away", "ERROR: away"]


def test_what_breaks_off_in_a_traceback_still_shows_how_it_began() -> None:
    assert shown("Failed", "Traceback (most recent call last):", '  File "x.py", line 1, in <module>') == ["Failed"]


INFORMATION = [
    "INFO:     Uvicorn running on http://127.0.0.1:8080 (Press CTRL+C to quit)",
    "2026-11-26 01:47:15 [info     ] worker_ready                   queues=['llm']",
    "2026-11-26 01:47:15 [debug    ] looked",
    "INFO  [alembic.runtime.migration] Context impl PostgresqlImpl.",
    "12:00:01 - LiteLLM:INFO: utils.py:1 - \x1b[92mcalled",
    "[11/26/26 01:48:15] INFO     Processing request of type ListTools",
    "INFO:root:started",
    "2026-11-26 01:47:15,123 - httpx - INFO - HTTP Request: GET /",
    "time=2026-11-26T01:48:53.843 level=INFO msg=x",
]


@pytest.mark.parametrize("line", INFORMATION)
def test_what_is_marked_as_information_is_not_shown(line: str) -> None:
    assert shown(line, "ERROR: after") == ["ERROR: after"]


@pytest.mark.parametrize(
    "line",
    ["WARNING: low on INFO", "the INFO desk is closed", "Information for you", "2026-11-26 01:47:15 [warning  ] info"],
)
def test_other_lines_that_name_it_are_shown(line: str) -> None:
    assert shown(line) == [line]


def test_information_that_ends_in_a_traceback_is_shown() -> None:
    code = "import logging as it\nit.basicConfig(level=20)\ntry: 1 / 0\nexcept Exception: it.info('Failed', exc_info=1)"
    assert shown(*written_by(code)) == ["INFO:root:Failed: ZeroDivisionError: division by zero"]


async def test_a_line_is_shown_at_once_and_not_only_with_the_next() -> None:
    shown_line: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    Excerpt(shown_line.set_result).take("ready")
    assert await asyncio.wait_for(shown_line, 20) == "ready"
