"""An MCP server written by hand over standard input and output, so that it can break the protocol in any way.
`python tests/doubles/mcp_raw.py CALLS_FILE HOW`: for each `tools/call`, it adds a line to CALLS_FILE and does HOW."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from threading import Thread
from typing import Any

TOOL: dict[str, Any] = {
    "name": "press",
    "description": "Press the button.",
    "inputSchema": {"type": "object", "properties": {"times": {"type": "integer"}}},
}
_PRESSED: dict[str, Any] = {"type": "object", "properties": {"pressed": {"type": "integer"}}, "required": ["pressed"]}
_SCHEMAS: dict[str, dict[str, Any]] = {
    "fits": _PRESSED, "misfits": _PRESSED, "has_no_structure": _PRESSED,
    "slow_pattern": {"type": "object", "properties": {"pressed": {"pattern": "^(?=(a|aa)+$)"}}},
    "schema_elsewhere": {"type": "object", "$ref": "https://nowhere.example/schema.json"},
    "schema_is_none": {"type": "object", "properties": {"pressed": {"type": "objekt"}}},
}  # fmt: skip
"""What it says of its answers, by HOW."""
_STRUCTURED: dict[str, Any] = {"misfits": "often", "slow_pattern": "a" * 60 + "b"}
_ERRORS = {
    "says_invalid_params": -32602, "says_no_such_method": -32601, "says_internal_error": -32603, "says_its_own": -32000,
}  # fmt: skip


def answer(message: dict[str, Any], calls: Path, how: str) -> None:
    method, number = message.get("method"), message.get("id")
    if method in _OTHER_ANSWERS.get(how, {}):
        write({"jsonrpc": "2.0", "id": number, **_OTHER_ANSWERS[how][method]})
    elif method == "initialize" and how == "exits":
        sys.exit("cannot reach the licence server")
    elif method == "initialize":
        version = message["params"]["protocolVersion"]
        say(number, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": _INFO})
    elif method == "tools/list":
        tool = TOOL | ({"outputSchema": _SCHEMAS[how]} if how in _SCHEMAS else {})
        broken = _BROKEN_TOOLS if how == "lists_broken_tools" else []
        page = json.dumps({"tools": [*broken, tool]} | _PAGES.get(how, {}))
        page = page.replace('"LONG"', "9" * 5_000)
        sys.stdout.write(f'{{"jsonrpc": "2.0", "id": {number}, "result": {page}}}\n')
        sys.stdout.flush()
    elif method == "tools/call":
        with calls.open("a") as file:
            file.write(json.dumps(message["params"]) + "\n")
        pressed(number, how)
    elif number is not None:
        write({"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": "Method not found"}})


_INITIALIZED = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "raw", "version": "1"}}
_OTHER_ANSWERS: dict[str, dict[str, dict[str, Any]]] = {
    "expired": {"initialize": {"error": {"code": -32000, "message": "licence expired"}}},
    "locked": {"tools/list": {"error": {"code": -32603, "message": "database is locked"}}},
    "old_version": {"initialize": {"result": _INITIALIZED | {"protocolVersion": "1999-12-31"}}},
    "no_capabilities": {"initialize": {"result": {k: v for k, v in _INITIALIZED.items() if k != "capabilities"}}},
    "null_tools": {"tools/list": {"result": {"tools": None}}},
}
"""Answers of other requests than calls, by HOW and method."""
_waiting: list[Any] = []
_INFO = {"name": "raw", "version": "1"}
_BROKEN_TOOLS: list[Any] = [
    TOOL | {"name": "untyped", "inputSchema": {"properties": {}}},
    TOOL | {"name": "titled", "title": 3},
    {"description": "It has no name."},
    "text",
]
_HALVES = r"pressed \ud83d\ude00 \ud83d, \\ud83d"
_deep: dict[str, Any] = {"type": "object"}
for _ in range(400):
    _deep = {"type": "object", "properties": {"a": _deep}}
_LONG = {"type": "object", "properties": {"n": {"maximum": "LONG"}}}
_PAGES: dict[str, dict[str, Any]] = {
    "lists_deep_schema": {"tools": [TOOL | {"name": "bad", "inputSchema": _deep}, TOOL]},
    "lists_long_integer": {"tools": [TOOL | {"name": "bad", "inputSchema": _LONG}, TOOL]},
    "lists_number_as_cursor": {"nextCursor": 5},
    "lists_wrong_meta": {"_meta": 7, "ttlMs": "soon"},
    "lists_deep_meta": {"_meta": _deep},
    "lists_nulls": {"nextCursor": None, "_meta": None, "tools": [TOOL | {"title": None, "annotations": None}]},
    "lists_large": {
        "tools": [TOOL | {"name": "bad", "inputSchema": {"type": "object", "title": "x" * 11_000_000}}, TOOL]
    },
    "lists_one_cursor": {"nextCursor": "again"},
}
"""Fields of its list of tools, by HOW."""
GOOD = {"content": [{"type": "text", "text": "pressed"}]}

_RESULTS: dict[str, Any] = {
    "result_is_text": "pressed", "result_is_list": ["pressed"], "content_is_number": {"content": 42},
    "nulls": GOOD | {"isError": None, "structuredContent": None, "_meta": None},
    "nulls_in_block": {"content": [GOOD["content"][0] | {"annotations": None, "_meta": None}], "isError": None},
    "is_huge": {"content": [{"type": "text", "text": "pressed" + "x" * 17_000_000}]},
}  # fmt: skip
_LINES = {
    "no_result": '{"jsonrpc": "2.0", "id": NUMBER}\n',
    "broken_json": '{"jsonrpc": "2.0", "id": NUMBER, "result": {"content": pressed}}\n',
    "no_version": '{"id": NUMBER, "result": {"content": [{"type": "text", "text": "pressed"}]}}\n',
    "error_is_text": '{"jsonrpc": "2.0", "id": NUMBER, "error": "no such button"}\n',
    "starts_with_mark": '\ufeff{"jsonrpc": "2.0", "id": NUMBER, "result": GOOD}\n',
    "long_integer": '{"jsonrpc": "2.0", "result": {"content": [], "x": ' + "9" * 5_000 + '}, "id": NUMBER}\n',
    "deep_arrays": '{"jsonrpc": "2.0", "id": NUMBER, "result": ' + "[" * 3_000 + "7" + "]" * 3_000 + "}\n",
    "deep_structure": '{"jsonrpc": "2.0", "id": NUMBER, "result": {"content": [], "structuredContent": 7}}\n'.replace(
        "7", '{"a":' * 900 + "7" + "}" * 900),
    "id_is_float": '{"jsonrpc": "2.0", "result": GOOD, "id": NUMBER.0}\n',
    "id_is_text": '{"jsonrpc": "2.0", "result": GOOD, "id": "NUMBER"}\n',
    "text_id_and_misfit": '{"jsonrpc": "2.0", "result": {"content": 42}, "id": "NUMBER"}\n',
    "pretty": '{\n  "id": NUMBER,\n  "jsonrpc": "2.0",\n  "result":\n  {\n    "content": [TEXT]\n  }\n}\n'.replace(
        "TEXT", json.dumps(GOOD["content"][0], indent=2)),
    "half_then_dies": '{"jsonrpc": "2.0", "id": NUMBER, "result": {"content": [{"type": "te',
}  # fmt: skip

_JSON, _EVENTS = "application/json", "text/event-stream"
_NOTICE = b'data: {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "%s"}}'
_HTTP: dict[str, tuple[int, str, bytes]] = {
    "in_an_event": (200, _EVENTS, b'data: {"jsonrpc": "2.0", "id": NUMBER, "result": ["pressed"]}\n\n'),
    "in_another_event": (200, _EVENTS, b"event: result\ndata: ANSWER\n\n"),
    "after_noise": (200, _EVENTS,
                    b'data: {"method": "notifications/message"}\r\n\r\nPAUSEdata: oops\n\ndata: ANSWER\n\n'),
    "after_another": (200, _EVENTS, b'data: {"jsonrpc": "2.0", "id": 987, "result": {}}\n\ndata: ANSWER\n\n'),
    "after_notices": (200, _EVENTS, (_NOTICE % b"" + b"\n\n") * 4_000 + b"data: ANSWER\n\n"),
    "large_notice": (200, _EVENTS, _NOTICE % (b"x" * 200_000) + b"\n\n"),
    "large_event": (200, _EVENTS, b'data: {"jsonrpc": "2.0", "id": NUMBER, "result": "pressed' + b"x" * 200_000),
    "resumed": (200, _EVENTS, b"id: 7\nretry: 10\ndata: \n\n"), "as_html": (200, "text/html", b"<h1>pressed</h1>"),
    "as_nothing": (202, _JSON, b""), "as_events_without_one": (200, _EVENTS, b": ping\n\n"),
    "always_words": (400, "text/plain", b"no such app"), "always_login": (200, "text/html", b"<h1>log in</h1>"),
    "always_moved": (302, "text/html; charset=x", b""), "with_mark": (200, _JSON, b"\xef\xbb\xbfANSWER"),
    "in_latin_1": (200, _JSON,
                   b'{"jsonrpc": "2.0", "id": NUMBER, "result": {"content": [{"type": "text", "text": "\xe9"}]}}'),
    "in_a_batch": (200, _JSON, b"[ANSWER]"),
    "error_without_id": (
        200, _JSON, b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32602, "message": "no such id"}}'),
    "error_at_400": (
        400, "text/plain", b'{"jsonrpc": "2.0", "id": null, "error": {"code": -1, "message": "no such id"}}'),
    "words_at_400": (400, "text/plain", b"no such id"), "detail_at_400": (400, _JSON, b'{"detail": "no such id"}'),
    "result_at_500": (500, _JSON, b"ANSWER"),
    "notice_alone": (200, _JSON, b'{"jsonrpc": "2.0", "method": "notifications/message"}'),
    "other_number": (200, _JSON, b'{"jsonrpc": "2.0", "id": 987, "result": {"content": []}}'),
    "as_text": (200, "text/plain", b"ANSWER"), "as_accepted": (202, _JSON, b"ANSWER"),
}  # fmt: skip
"""Status, content type and body of the answer of a call over HTTP, by HOW."""
_RESUMED = b'data: {"method": "oops"}\n\ndata: {"result": "pressed", "id": %d}\n\n'


def pressed(number: Any, how: str) -> None:
    if how in _ERRORS:
        write({"jsonrpc": "2.0", "id": number, "error": {"code": _ERRORS[how], "message": "because of the test"}})
    elif how in _RESULTS:
        say(number, _RESULTS[how])
    elif how in _LINES:
        sys.stdout.write(_LINES[how].replace("NUMBER", str(number)).replace("GOOD", json.dumps(GOOD)))
        sys.stdout.flush()
        if not _LINES[how].endswith("\n"):
            os.kill(os.getpid(), signal.SIGKILL)
    elif how == "half_characters":
        sys.stdout.write(
            json.dumps({"jsonrpc": "2.0", "id": number, "result": GOOD}).replace("pressed", _HALVES) + "\n"
        )
        sys.stdout.flush()
    elif how == "other_id":
        say(987_654, GOOD)
    elif how == "not_utf8":
        sys.stdout.buffer.write(b'\xff\xfe{"jsonrpc"\n')
        sys.stdout.buffer.flush()
        say(number, GOOD)
    elif how == "endless_line":
        while True:
            sys.stdout.buffer.write(b"x" * 65_536)
    elif how == "second_is_huge":  # and the first is answered behind it
        _waiting.append(number)
        if len(_waiting) == 2:
            say(_waiting[1], {"content": [{"type": "text", "text": "x" * 17_000_000}]})
            say(_waiting[0], GOOD)
    elif how == "takes_its_time":
        time.sleep(2.0)
        say(number, GOOD)
    elif how == "chatters":
        sys.stderr.write("x" * 3_000_000)
        sys.stderr.flush()
        say(number, GOOD)
    elif how in _SCHEMAS and how != "has_no_structure":
        say(number, GOOD | {"structuredContent": {"pressed": _STRUCTURED.get(how, 1)}})
    elif how == "hangs":
        time.sleep(3600)
    else:
        say(number, GOOD)


def say(number: Any, result: Any) -> None:
    write({"jsonrpc": "2.0", "id": number, "result": result})


def write(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


@contextmanager
def raw_http_server(how: str) -> Iterator[str]:
    """The same server over HTTP, for answers that are one line; it yields its address."""
    numbers: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            numbers.append(message.get("id"))
            with redirect_stdout(StringIO()) as written:
                answer(message, Path(os.devnull), how)
            body = written.getvalue().strip().encode()
            status, kind = 200 if body else 202, _JSON
            if (message["method"] == "tools/call" and how in _HTTP) or how.startswith("always_"):
                status, kind, template = _HTTP[how]
                body = template.replace(b"ANSWER", body).replace(b"NUMBER", str(message.get("id")).encode())
            self.send_response(status)
            self.send_header("Content-Type", kind)
            if status == 302:
                self.send_header("Location", "https://new.example/mcp")
            parts = body.split(b"PAUSE")
            self.send_header("Content-Length", str(sum(map(len, parts))))
            self.end_headers()
            with suppress(BrokenPipeError, ConnectionResetError):  # the client reads only the start of a huge answer
                for part in parts:
                    self.wfile.write(part)
                    time.sleep(0.1 * (len(parts) - 1))

        def do_GET(self) -> None:
            if self.headers["Last-Event-ID"] == "7":
                self.send_response(200)
                self.send_header("Content-Type", _EVENTS)
                self.end_headers()
                self.wfile.write(_RESUMED % numbers[-1])
            else:
                self.send_error(405)

        do_DELETE = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/mcp"
        server.shutdown()


if __name__ == "__main__":
    for line in sys.stdin:
        answer(json.loads(line), Path(sys.argv[1]), sys.argv[2])
