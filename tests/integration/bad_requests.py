"""The table of bad requests: each route with each kind of wrong, and what must be answered."""

import json
from dataclasses import dataclass, field
from urllib.parse import quote

from perdure.contracts.values import digest_of

UNKNOWN = "01a1fdeb-b782-7ebe-9496-5deb828d9713"
DEEP = b"[" * 100_000 + b"]" * 100_000
LONG = "".join(digest_of(number) for number in range(80))
"""Too long for an index of Postgres, and not to be compressed."""
JSON = {"content-type": "application/json"}


@dataclass(frozen=True)
class Bad:
    """A request that must be refused."""

    method: str
    path: str
    body: bytes | None = None
    status: tuple[int, ...] = (422,)
    headers: dict[str, str] = field(default_factory=dict)
    by: str = "requester"


def post(path: str, body: object, *status: int, **headers: str) -> Bad:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    by = "admin" if path.startswith("/v1/users") else "reviewer" if "decision" in path else "requester"
    return Bad("POST", path, content, status or (422,), {key.replace("_", "-"): v for key, v in headers.items()}, by)


POSTS: dict[str, dict[str, object]] = {
    "/v1/conversations": {"agent": "refunds"},
    "/v1/conversations/{conversation}/turns": {"message": "/echo hi"},
    "/v1/execute": {"agent": "refunds", "message": "/echo hi"},
    f"/v1/approvals/{UNKNOWN}/decision": {"decision": "approve", "digest": "0" * 64},
    "/v1/effects/pdk_x/settle": {"outcome": "happened", "comment": "saw it"},
    "/v1/users": {"name": "ann"},
    "/v1/memory/episodic": {"conversation_id": "{conversation}", "summary": "x"},
    "/v1/memory/episodic/search": {"agent": "refunds", "query": "x"},
    "/v1/users/requester/roles": {"roles": ["requester"]},
    "/v1/users/requester/tokens": {"label": "x"},
}
"""Every route with a body, and one that would fit."""

BROKEN_BODIES: list[tuple[bytes, tuple[int, ...]]] = [
    (b"", (422,)),
    (b"{", (400,)),
    (b"nonsense", (400,)),
    (b'{"a": 1} trailing', (400,)),
    (b'{"agent": "refunds", "agent": "nobody"}', (400,)),
    (b"\xff\xfe{\x00}\x00", (400, 422)),
    (b"\xc3\x28", (400,)),
    (b"[]", (422,)),
    (b"null", (422,)),
    (b'"text"', (422,)),
    (b"12", (422,)),
    (b"NaN", (400, 422)),
    (b"1" * 5_000, (400, 422)),
    (b"{}" + b" " * 300_000, (413,)),
    (DEEP[:50_000] + DEEP[-50_000:], (400, 422)),
    (b'{"a":' * 5_000 + b"1" + b"}" * 5_000, (400, 422)),
    (b'{"unexpected": 1}', (422,)),
]


def spoiled() -> list[Bad]:
    """Every route with every kind of broken body, and every field of it with every wrong value."""
    found = [post(path, body, *status) for path in POSTS for body, status in BROKEN_BODIES]
    wrong: list[object] = [None, 7, True, 1.5, [], {}, "\x00", "a\ud800b", "\udfff", ["\x00"], {"\x00": 1}]
    for path, fits in POSTS.items():
        for name, value in fits.items():
            for bad in wrong:
                if type(bad) is not type(value) or isinstance(bad, str):
                    found.append(post(path, {**fits, name: bad}, 422))
            if isinstance(value, str):
                if name != "label":
                    found.append(post(path, {**fits, name: ""}, 422, 404, 409))
                found.append(post(path, {**fits, name: "x" * 250_000}, 422, 413))
        found.append(post(path, {**fits, "surprise": 1}, 422))
    return found


def metadata() -> list[Bad]:
    """Text and numbers that Postgres cannot hold, hidden deep."""
    hidden: list[bytes] = [
        b'{"a": {"b": ["\\u0000"]}}',
        b'{"\\ud83d": 1}',
        b'{"a": "\\ud83d\\ud83d"}',
        b'{"a": 1e999}',
        b'{"a": -Infinity}',
        b'{"a": ' + b"9" * 4_000 + b"}",
        b'{"a": ' + b"[" * 70 + b"]" * 70 + b"}",
        b"[]",
        b'"x"',
    ]
    paths = {
        "/v1/conversations": b'{"agent": "refunds", "metadata": %s}',
        "/v1/conversations/{conversation}/turns": b'{"message": "/echo hi", "metadata": %s}',
        "/v1/execute": b'{"agent": "refunds", "message": "/echo hi", "metadata": %s}',
    }
    return [post(path, form % value, 422, 400) for path, form in paths.items() for value in hidden]


def limits() -> list[Bad]:
    wrong: list[dict[str, object]] = [
        {"max_tokens": 0}, {"max_tokens": -5}, {"max_tokens": "10"}, {"max_tokens": True}, {"max_tokens": 1.5},
        {"max_tokens": 10**30}, {"max_cost_usd": -1}, {"max_cost_usd": "1"}, {"max_iterations": 10**20}, {"nope": 1},
        {"max_iterations": [1]},
    ]  # fmt: skip
    path = "/v1/conversations/{conversation}/turns"
    found = [post(path, {"message": "/echo hi", "limits": each}) for each in wrong]
    found += [post(path, {"message": "/echo hi", "on_busy": each}) for each in ("never", 1, "STEER", ["replace"], None)]
    found += [post(f"{path}?wait={each}", {"message": "/echo hi"}) for each in ("x", "-1", "nan", "inf", "1e9", "301")]
    return found


def queries() -> list[Bad]:
    lists = ("/v1/conversations", "/v1/turns", "/v1/approvals", "/v1/effects", "/v1/approvals/decided")
    numbers = (
        "WyIyMDI2LTAxLTAxVDAwOjAwOjAwKzAwOjAwIiwiwrIiXQ",
        "WyIyMDI2LTAxLTAxVDAwOjAwOjAwKzAwOjAwIiwiOTk5OTk5OTk5OTk5OTk5OTk5OTkiXQ",
        "WyIyMDI2LTAxLTAxVDAwOjAwOjAwKzAwOjAwIiwiLTEiXQ",
    )
    cursors = (
        "x",
        "e30",
        "W10",
        "WzEsMl0",
        "%F0%9F%98%80",
        "A" * 3_000,
        "WyIwMDAxLTAxLTAxVDAwOjAwOjAwKzE0OjAwIiwiYSJd",
    )
    found = [Bad("GET", f"{path}?limit={each}") for path in lists for each in ("0", "-1", "x", "1.5", "%00")]
    found = [Bad(bad.method, bad.path, status=(422, 400)) for bad in found]
    found += [Bad("GET", f"{path}?cursor={each}", status=(422, 400)) for path in lists for each in cursors]
    found += [
        Bad("GET", f"/v1/conversations/{{conversation}}/messages?cursor={each}") for each in ("x", "9" * 30, "-1")
    ]
    found += [Bad("GET", f"{path}?cursor=%ED%A0%80", status=(400,)) for path in lists]
    found += [Bad("GET", f"/v1/approvals/decided?cursor={each}") for each in numbers]
    found += [
        Bad("GET", "/v1/turns?status=sideways"),
        Bad("GET", "/v1/turns?conversation=x", status=(404, 422)),
        Bad("GET", "/v1/effects?state=sideways"),
        Bad("GET", "/v1/approvals?status=sideways"),
        Bad("GET", "/v1/approvals?risk=sideways"),
        Bad("GET", "/v1/approvals?turn=x", status=(404, 422)),
        Bad("GET", "/v1/approvals?expiring=0"),
        Bad("GET", "/v1/approvals?expiring=99999999999999999999"),
        Bad("GET", "/v1/approvals?mine=perhaps"),
        Bad("GET", "/v1/conversations?title=a"),
        Bad("GET", "/v1/turns/{turn}/events?after=x"),
        Bad("GET", "/v1/turns/{turn}/events?after=1.2.3"),
        Bad("GET", "/v1/turns/{turn}/events", headers={"Last-Event-ID": "1;drop"}),
        Bad("GET", "/v1/turns/{turn}/events", headers={"Last-Event-ID": "9" * 400}, status=(400, 422)),
        Bad("GET", "/v1/conversations/{conversation}/stream?after=-1"),
        post("/v1/conversations", {"agent": "refunds"}, 400, 422, Idempotency_Key="x" * 300),
        post(
            "/v1/effects/" + "e" * 5_000 + "/settle", POSTS["/v1/effects/pdk_x/settle"], 404, 422, Idempotency_Key="k"
        ),
        post(f"/v1/users/{LONG}/roles", {"roles": []}, 404, 422, Idempotency_Key="k"),
    ]
    return found


def paths() -> list[Bad]:
    ids = (
        "x", "1", "-", "%00", "%ED%A0%80", "%FF", "..%2F..%2Fetc", "01a1fdeb-b782-7ebe-9496-5deb828d971", "NaN",
        UNKNOWN + "0", UNKNOWN, "😀", "a" * 3_000, "';--", "%F0%9F%98%80",
    )  # fmt: skip
    forms = (
        "/v1/conversations/{}", "/v1/conversations/{}/messages", "/v1/conversations/{}/stream", "/v1/turns/{}",
        "/v1/turns/{}/events", "/v1/approvals/{}", "/v1/agents/{}/tools", "/v1/topologies/{}", "/v1/topologies/{}.mmd",
        "/v1/entities/{}",
    )  # fmt: skip
    found = [Bad("GET", form.format(quote(each, safe="%")), status=(404, 400)) for form in forms for each in ids]
    found += [Bad("POST", f"/v1/turns/{quote(each, safe='%')}/stop", status=(404, 400)) for each in ids]
    found += [
        Bad("GET", "/v1/nothing", status=(404,)),
        Bad("GET", "/v1/", status=(404,)),
        Bad("PUT", "/v1/turns", status=(405,)),
        Bad("DELETE", "/v1/agents", status=(405,)),
        Bad("BREW", "/v1/turns", status=(405,)),
        post("/v1/conversations", {"agent": "nobody"}, 404, 422),
        post("/v1/execute", {"agent": "refunds", "message": "x", "conversation_id": "x"}, 404, 422),
        post("/v1/execute", {"agent": "refunds", "message": "x", "conversation_id": UNKNOWN}, 404),
        post(f"/v1/conversations/{UNKNOWN}/turns", {"message": "x"}, 404),
        post("/v1/conversations/{conversation}/turns", {"message": "   \n\t"}, 422),
        Bad("POST", "/v1/conversations", b'{"agent": "refunds"}', (415,), {"content-type": "text/plain"}),
        Bad("POST", "/v1/conversations", b"agent=refunds", (415,), {"content-type": "multipart/form-data"}),
        Bad("PATCH", "/v1/conversations/{conversation}", b'{"title": "\\u0000"}', (422,)),
        Bad("PATCH", "/v1/conversations/{conversation}", b'{"title": 7}', (422,)),
        Bad("PATCH", "/v1/conversations/{conversation}", b"[", (400,)),
        Bad("POST", "/v1/conversations", b'{"agent": "refunds"}', (400,), {"Idempotency-Key": ""}),
    ]
    return found


TABLE = [*spoiled(), *metadata(), *limits(), *queries(), *paths()]
