"""A flood of one child's lines is folded on the terminal."""

import asyncio
import io
import re
from pathlib import Path

import pytest

from perdure.local import output as module
from perdure.local.output import Console, Flood


def test_a_flood_shows_its_first_lines_and_counts_the_rest_ever_more_seldom() -> None:
    flood, shown, said = Flood(0.0), [], []
    for tick in range(600):
        now = tick / 10
        if flood.ends_in(now) <= 0:
            said.append((now, re.findall(r"\d+", flood.closed(now))))
        if flood.shows(f"ERROR: no room in block {tick}"):
            shown.append(tick)
        else:
            flood.folds()
    assert said == [
        (10.0, ["95", "10"]),
        (30.0, ["198", "20"]),
    ]
    assert shown == [0, 1, 2, 3, 4, 100, 101, 300, 301]


def test_lines_that_differ_are_shown_up_to_a_number_of_them() -> None:
    flood = Flood(0.0)
    shown = [number for number in range(50) if flood.shows("x" * number)]
    assert shown == list(range(20))


def test_after_a_quiet_window_all_is_as_before() -> None:
    flood = Flood(0.0)
    for _ in range(30):
        _ = flood.shows("away") or flood.folds()
    assert re.findall(r"\d+", flood.closed(10.0)) == ["25", "10"]
    assert flood.shows("back") and flood.closed(30.0) == ""
    assert [flood.shows("away") for _ in range(6)] == [True] * 5 + [False]


async def test_what_was_left_out_is_told_also_when_no_other_line_comes(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_children_say_of_a_full_disk_is_counted_and_not_shown() -> None:
    out = io.StringIO()
    console, full = Console(out, {}), False
    console.disk_is_full = lambda: full
    console.child("temporal", "ERROR database or disk is full (13)")
    full = True
    console.child("temporal", "ERROR database or disk is full (13)")
    console.child("postgres", "PANIC:  could not write: No space left on device")
    console.child("temporal", "ERROR something else")
    assert out.getvalue().splitlines() == [
        "temporal         | ERROR database or disk is full (13)",
        "temporal         | ERROR something else",
    ]


LOST = "relay_waits_for_postgres error=ConnectionRefusedError"


async def test_what_children_say_of_a_part_that_comes_back_is_counted_and_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.05)
    out, away = io.StringIO(), set[str]()
    console = Console(out, {})
    console.logs = Path("/data/logs")
    console.outage.away = lambda: away
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
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(module, "_QUIET_OUTAGE_SECONDS", 0.3)
    out = io.StringIO()
    console = Console(out, {})
    console.outage.away = lambda: {"worker-llm"}
    console.child("relay", LOST)
    assert out.getvalue() == ""
    await asyncio.sleep(0.5)
    console.child("relay", LOST)
    told, line = out.getvalue().splitlines()
    assert re.findall(r"(\d+) of (\w+)", told) == [("1", "relay")] and line == f"relay            | {LOST}"


def test_what_a_child_that_is_away_says_of_an_outage_is_shown_whatever_else_is_away() -> None:
    out, away = io.StringIO(), {"worker-llm"}
    console = Console(out, {})
    console.outage.away = lambda: away
    console.child("worker-turns", "said before it died: ConnectionRefusedError: first")
    console.child("worker-turns", "said before it died: ConnectionRefusedError: last")
    assert out.getvalue() == ""
    away.add("worker-turns")
    console.child("worker-turns", "exited with 1; starting it again in 4.0 s")
    console.child("worker-turns", LOST)
    assert [line.partition(" | ")[2] for line in out.getvalue().splitlines()] == [
        "said before it died: ConnectionRefusedError: last",
        "exited with 1; starting it again in 4.0 s",
        LOST,
    ]


def test_what_children_say_of_the_apps_is_not_shown_while_somebody_else_tells_of_it() -> None:
    out = io.StringIO()
    console = Console(out, {})
    problem = "2026-11-21 [warning  ] app_problem    problem=desk/agents/desk.yaml:3: there is no tool lok"
    console.apps_are_told = True
    console.child("worker-turns", problem)
    console.child("worker-turns", problem.replace("app_problem", "agents_not_here"))
    assert out.getvalue() == ""
    console.apps_are_told = False
    console.child("worker-turns", problem)
    assert out.getvalue() == f"worker-turns     | {problem}\n"


def test_what_is_waited_for_gives_way_to_progress_of_its_own() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    console = Console(out, {"NO_COLOR": "1"})
    console.waiting("waiting for api")
    console.live("building")
    console.waiting("waiting for api")
    console.end_live()
    assert out.getvalue() == "waiting for api\r\x1b[2Kbuilding\r\x1b[2K"
