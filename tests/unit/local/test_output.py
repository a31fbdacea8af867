"""Lines of the children: on the terminal, in files, of any bytes."""

import asyncio
import io
from pathlib import Path

from perdure.local.output import Console, LogFile, read_lines


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


async def test_lines_are_whole_however_the_bytes_arrive() -> None:
    assert await lines_of(b"on", b"e\ntwo\r\n", b"\nlast") == ["one", "two", "", "last"]


async def test_bytes_that_are_no_text_do_not_stop_the_reader() -> None:
    assert await lines_of(b"\xff\xfe ok\n") == ["\ufffd\ufffd ok"]


async def test_a_line_without_end_is_cut_into_pieces_and_nothing_is_lost() -> None:
    for ending in (b"", b"\nnext"):
        lines = await lines_of(b"x" * 200_000, ending)
        assert "".join(line for line in lines if line != "next") == "x" * 200_000
        assert max(map(len, lines)) <= 32 * 1024


def test_a_plain_stream_gets_prefixes_and_no_colour() -> None:
    out = io.StringIO()
    console = Console(out, {})
    console.child("api", "hello")
    console.part("postgres", "ready", 0.94, "127.0.0.1:1")
    assert out.getvalue() == "api              | hello\n  postgres         ready    0.9 s   127.0.0.1:1\n"


def test_a_terminal_gets_colours_unless_the_person_said_no() -> None:
    coloured, plain = Terminal(), Terminal()
    Console(coloured, {}).child("api", "hello")
    Console(plain, {"NO_COLOR": "1"}).child("api", "hello")
    assert "\x1b[" in coloured.getvalue()
    assert "\x1b[" not in plain.getvalue()


def test_progress_replaces_itself_on_a_terminal_and_gives_way_to_lines() -> None:
    out = Terminal()
    console = Console(out, {"NO_COLOR": "1"})
    console.live("step 1")
    console.live("step 2")
    console.say("a line")
    assert out.getvalue() == "step 1\r\x1b[2Kstep 2\r\x1b[2Ka line\n"


def test_progress_without_a_terminal_is_a_line_now_and_then() -> None:
    out = io.StringIO()
    console = Console(out, {})
    for step in range(100):
        console.live(f"step {step}")
    assert out.getvalue() == "step 0\n"


def test_a_closed_terminal_silences_the_console_and_stops_nothing() -> None:
    console = Console(Closed(), {})
    console.say("one")
    console.child("api", "two")


def test_a_log_keeps_every_line_and_the_run_before(tmp_path: Path) -> None:
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
