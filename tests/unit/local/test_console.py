"""A flood of one child's lines is folded on the terminal."""

import asyncio
import io
from pathlib import Path

import pytest

from perdure.local import output as module
from perdure.local.output import Console, Flood


def test_a_flood_shows_its_first_lines_and_counts_the_rest_ever_more_seldom() -> None:
    flood, shown, said = Flood(0.0), [], []
    for tick in range(600):
        now = tick / 10
        if flood.ends_in(now) <= 0:
            said.append((now, flood.closed(now)))
        if flood.shows(f"ERROR: no room in block {tick}"):
            shown.append(tick)
        else:
            flood.folds()
    assert said == [
        (10.0, "(and 95 more lines like these in 10 s"),
        (30.0, "(and 198 more lines like these in 20 s"),
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
    assert flood.closed(10.0).startswith("(and 25 more")
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
    assert lines[-1] == "postgres         | (and 412 more lines like these in 0 s; log: /data/logs/postgres.log)"
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


def test_what_children_say_of_a_part_that_comes_back_is_not_shown() -> None:
    out = io.StringIO()
    console, away = Console(out, {}), False
    console.part_is_away = lambda: away
    lost = "relay_waits_for_postgres error=ConnectionRefusedError"
    console.child("relay", lost)
    away = True
    console.child("relay", lost)
    console.child("relay", "turn_not_compared")
    assert out.getvalue().splitlines() == [f"relay            | {lost}", "relay            | turn_not_compared"]


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
