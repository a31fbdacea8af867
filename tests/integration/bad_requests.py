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
    method: str
    path: str
    body: bytes | None = None
    status: tuple[int, ...] = (422,)
    headers: dict[str, str] = field(default_factory=dict)
    by: str = "requester"


def get(path: str, *status: int) -> Bad:
    return Bad("GET", path, status=status or (422,))


def post(path: str, body: object, *status: int, **headers: str) -> Bad:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    by = "admin" if path.startswith("/v1/users") else "reviewer" if "decision" in path else "requester"
    return Bad("POST", path, content, status or (422,), {key.replace("_", "-"): v for key, v in headers.items()}, by)


TURNS, EXECUTE = "/v1/conversations/{conversation}/turns", "/v1/execute"
SETTLED: dict[str, object] = {"outcome": "happened", "comment": "saw it"}
POSTS: dict[str, dict[str, object]] = {
    "/v1/conversations": {"agent": "refunds"},
    TURNS: {"message": "/echo hi"},
    EXECUTE: {"agent": "refunds", "message": "/echo hi"},
    f"/v1/approvals/{UNKNOWN}/decision": {"decision": "approve", "digest": "0" * 64},
    "/v1/effects/pdk_x/settle": SETTLED,
    "/v1/users": {"name": "ann"},
    "/v1/memory/episodic": {"conversation_id": "{conversation}", "summary": "x"},
    "/v1/memory/episodic/search": {"agent": "refunds", "query": "x"},
    "/v1/users/requester/roles": {"roles": ["requester"]},
    "/v1/users/requester/tokens": {"label": "x"},
}
"""Every route with a body, and one that would fit."""
BROKEN_BODIES: list[tuple[bytes, tuple[int, ...]]] = [
    *((body, (422,)) for body in (b"", b"[]", b"null", b'"text"', b"12", b'{"unexpected": 1}')),
    *((body, (400,)) for body in (b"{", b"nonsense", b'{"a": 1} trailing', b"\xc3\x28")),
    (b'{"agent": "refunds", "agent": "nobody"}', (400,)),
    *((body, (400, 422)) for body in (b"\xff\xfe{\x00}\x00", b"NaN", b"1" * 5_000, DEEP[:50_000] + DEEP[-50_000:])),
    (b'{"a":' * 5_000 + b"1" + b"}" * 5_000, (400, 422)),
    (b"{}" + b" " * 300_000, (413,)),
]
MEMORY, DRAFT = "/v1/memory/working/{conversation}", "/v1/prompt-templates/voice/draft"
PROMOTION, RAISE = f"/v1/prompt-versions/{UNKNOWN}/promote", f"/v1/turns/{UNKNOWN}/limits"
ANYTHING: list[object] = [True, [], {}, "\x00", "a\ud800b", ["\x00"], {"\x00": 1}, {"a": ["\udfff"]}]
"""Wrong for every field but one that holds objects."""
NO_COUNT: list[object] = [*ANYTHING, 0, -1, 1.5, -0.0, 1e16, 1e300, "60", "", 10**30]
NO_TEXT: list[object] = [*ANYTHING, None, 7, 1.5, ""]
NO_FIELDS: list[object] = [
    *(each for each in ANYTHING if each != {}), None, 7, "x",
    *({name: 1} for name in ("", "a b", "1a", "a\n", "a" * 65, "é")),
]  # fmt: skip
NO_TOOL: list[object] = [*NO_TEXT, "refund", "memory_patch ", "x" * 201]
NO_COST: list[object] = [*ANYTHING, 0, -1, -0.0, "1", 1e300, 10**10]
NO_DIGEST: tuple[object, list[object]] = ("0" * 64, [*ANYTHING, None, 7, "0" * 129])
CHANGES: list[tuple[str, str, str, dict[str, tuple[object, list[object]]]]] = [
    ("PUT", MEMORY, "requester", {"fields": ({"a": 1}, NO_FIELDS), "ttl_seconds": (60, [*NO_COUNT, None])}),
    ("PUT", DRAFT, "requester", {"text": ("You are kind.", [*NO_TEXT, " \n\t", "x" * 50_001])}),
    ("PUT", "/v1/rules", "admin", {"rule": ("x", NO_TEXT), "do": ("abort", [*NO_TEXT, "x" * 41])}),
    (
        *("PUT", "/v1/rules/tools", "admin"),
        {"tool": ("memory_patch", NO_TOOL), "approval": (True, [*ANYTHING[1:], None, 0, 1, "false"])},
    ),
    (*("PUT", "/v1/budgets", "admin"), {"max_tokens": (5, [*NO_COUNT, 2**53 + 1]), "max_cost_usd": (1.0, NO_COST)}),
    ("POST", RAISE, "reviewer", {"max_tokens": (5, NO_COUNT)}),
    ("POST", RAISE, "reviewer", {"max_cost_usd": (5, [*ANYTHING, 0, -1, "1"])}),
    ("POST", PROMOTION, "reviewer", {"to": ("active", [*NO_TEXT, "draft", "archived", "ACTIVE"]), "digest": NO_DIGEST}),
]
"""Each route that sets something, who may ask it, and for each field what would fit and what is wrong."""
NO_VALUE = (b"1e999", b"-Infinity", b"NaN", b"9" * 4_000, b"[" * 70 + b"]" * 70, b'{"a": {"b": "\\u0000"}}')
"""What no field may hold, in ways that only raw JSON can say."""


def spoiled_bodies() -> list[Bad]:
    """Every route with every kind of broken body, and every field of it with every wrong value."""
    found = [post(path, body, *status) for path in POSTS for body, status in BROKEN_BODIES]
    wrong: list[object] = [None, 7, True, 1.5, [], {}, "\x00", "a\ud800b", "\udfff", ["\x00"], {"\x00": 1}]
    for path, fits in POSTS.items():
        for name, value in fits.items():
            unfit = [bad for bad in wrong if type(bad) is not type(value) or isinstance(bad, str)]
            found += [post(path, {**fits, name: bad}, 422) for bad in unfit]
            if isinstance(value, str):
                if name != "label":
                    found.append(post(path, {**fits, name: ""}, 422, 404, 409))
                found.append(post(path, {**fits, name: "x" * 250_000}, 422, 413))
        found.append(post(path, {**fits, "surprise": 1}, 422))
    for method, path, by, fields in CHANGES:
        found += [Bad(method, path, body, status, by=by) for body, status in BROKEN_BODIES]
        fits = {name: value for name, (value, _) in fields.items()}
        bodies = [{**fits, name: bad} for name, (_, values) in fields.items() for bad in values]
        found += [Bad(method, path, json.dumps(body).encode(), by=by) for body in (*bodies, {**fits, "surprise": 1})]
        for name in fields:
            marked = json.dumps({**fits, name: "HERE"}).encode()
            found += [Bad(method, path, marked.replace(b'"HERE"', each), (422, 400), by=by) for each in NO_VALUE]
    return found


def metadata() -> list[Bad]:
    """Text and numbers that Postgres cannot hold, hidden deep."""
    hidden = [b'{"a": %s}' % each for each in (b'{"b": ["\\u0000"]}', b'"\\ud83d\\ud83d"', *NO_VALUE)]
    hidden += [b'{"\\ud83d": 1}', b"[]", b'"x"']
    paths = {
        "/v1/conversations": b'{"agent": "refunds", "metadata": %s}',
        TURNS: b'{"message": "/echo hi", "metadata": %s}',
        EXECUTE: b'{"agent": "refunds", "message": "/echo hi", "metadata": %s}',
    }
    found = [post(path, form % value, 422, 400) for path, form in paths.items() for value in hidden]
    return found + [Bad("PUT", MEMORY, b'{"fields": {"a": %s}}' % each, (422, 400)) for each in NO_VALUE]


def limits() -> list[Bad]:
    counts: list[object] = [0, -5, "10", True, 1.5, 10**30]
    wrong: list[dict[str, object]] = [{"max_tokens": each} for each in counts]
    wrong += [{"max_cost_usd": -1}, {"max_cost_usd": "1"}, {"max_iterations": 10**20}, {"nope": 1}]
    wrong.append({"max_iterations": [1]})
    found = [post(TURNS, {"message": "/echo hi", "limits": each}) for each in wrong]
    found += [post(TURNS, {"message": "hi", "on_busy": each}) for each in ("never", 1, "STEER", ["replace"], None)]
    return found + [post(f"{TURNS}?wait={each}", {"message": "hi"}) for each in ("x", "-1", "nan", "inf", "1e9", "301")]


def queries() -> list[Bad]:
    lists = [f"/v1/{name}?" for name in ("conversations", "turns", "approvals", "effects", "approvals/decided")]
    lists += ["/v1/prompt-templates?", "/v1/memory/episodic?conversation_id={conversation}&"]
    of_a_day = "WyIyMDI2LTAxLTAxVDAwOjAwOjAwKzAwOjAwIiwi"
    numbers = [of_a_day + each for each in ("wrIiXQ", "OTk5OTk5OTk5OTk5OTk5OTk5OTkiXQ", "LTEiXQ")]
    cursors = (
        "x", "e30", "W10", "WzEsMl0", "%00", "%F0%9F%98%80", "A" * 3_000,
        "WyIwMDAxLTAxLTAxVDAwOjAwOjAwKzE0OjAwIiwiYSJd",
    )  # fmt: skip
    found = [get(f"{path}limit={each}", 422, 400) for path in lists for each in ("0", "-1", "x", "1.5", "%00")]
    found += [get(f"{path}cursor={each}", 422, 400) for path in lists for each in cursors]
    found += [get(f"/v1/conversations/{{conversation}}/messages?cursor={each}") for each in ("x", "9" * 30, "-1")]
    found += [get(f"{path}cursor=%ED%A0%80", 400) for path in lists]
    found += [get(f"/v1/approvals/decided?cursor={each}") for each in numbers]
    found += [get(f"/v1/{name}=x", 404, 422) for name in ("turns?conversation", "approvals?turn")]
    found += [get(f"/v1/approvals?{each}") for each in ("status=sideways", "risk=sideways", "mine=perhaps")]
    found += [get(f"/v1/entities{each}") for each in ("", "?name=", "?name=" + "a" * 201, "?name=a&limit=0")]
    found += [get(f"/v1/approvals?expiring={each}") for each in ("0", "99999999999999999999")]
    found += [get(f"/v1/turns/{{turn}}/events?after={each}") for each in ("x", "1.2.3")]
    keyed = {"Idempotency_Key": "k"}
    return [
        *found,
        *(get(f"/v1/{each}=sideways") for each in ("turns?status", "effects?state", "prompt-templates?stage")),
        *(get(f"/v1/{each}") for each in ("conversations?title=a", "prompt-templates/x?stage=archived")),
        get("/v1/conversations/{conversation}/stream?after=-1"),
        Bad("GET", "/v1/turns/{turn}/events", headers={"Last-Event-ID": "1;drop"}),
        Bad("GET", "/v1/turns/{turn}/events", headers={"Last-Event-ID": "9" * 400}, status=(400, 422)),
        post("/v1/conversations", {"agent": "refunds"}, 400, 422, Idempotency_Key="x" * 300),
        post("/v1/effects/" + "e" * 5_000 + "/settle", SETTLED, 404, 422, **keyed),
        post(f"/v1/users/{LONG}/roles", {"roles": []}, 404, 422, **keyed),
    ]


def paths() -> list[Bad]:
    """Ids and names that nothing has, and what no route takes."""
    raw = (
        "x", "1", "-", "%00", "%ED%A0%80", "%FF", "..%2F..%2Fetc", UNKNOWN[:-1], "NaN", UNKNOWN + "0", UNKNOWN, "😀",
        "a" * 3_000, "';--", "%F0%9F%98%80",
    )  # fmt: skip
    ids = [quote(each, safe="%") for each in raw]
    gets = (
        "conversations/{}", "conversations/{}/messages", "conversations/{}/stream", "turns/{}", "turns/{}/events",
        "approvals/{}", "prompt-versions/{}", "agents/{}/tools", "topologies/{}", "topologies/{}.mmd", "entities/{}",
        "memory/documents/{}", "memory/documents/{}/versions", "memory/promotions/{}",
    )  # fmt: skip
    found = [get(f"/v1/{form.format(each)}", 404, 400) for form in gets for each in ids]
    found += [Bad("POST", f"/v1/turns/{each}/stop", status=(404, 400)) for each in ids]
    verbs = [*((verb, b"{}") for verb in ("claim", "release", "withdraw", "escalate")), ("reassign", b'{"to": "x"}')]
    for verb, body in verbs:
        found += [Bad("POST", f"/v1/approvals/{each}/{verb}", body, (404, 400), by="reviewer") for each in ids]
    missing = (404, 400, 422)
    removed = ("conversations", "memory/working")
    found += [Bad("DELETE", f"/v1/{kind}/{each}", status=missing) for kind in removed for each in ids]
    found += [Bad("PUT", f"/v1/memory/working/{each}", b'{"fields": {"a": 1}}', missing) for each in ids]
    found += [Bad("POST", f"/v1/prompt-versions/{each}/archive", status=missing) for each in ids]
    unread = b'{"expected_sha256": "x", "content": "x"}'
    found += [Bad("PUT", f"/v1/memory/documents/{each}", unread, missing, by="admin") for each in ids]
    found += [Bad("DELETE", f"/v1/memory/documents/{each}", status=missing, by="admin") for each in ids]
    no_names = [each for each in ids if each not in ("x", "-", UNKNOWN, UNKNOWN[:-1])] + ["Voice", "1x", "a b"]
    draft = b'{"text": "x"}'
    found += [Bad("PUT", f"/v1/prompt-templates/{each}/draft", draft, missing) for each in no_names]
    found += [Bad("DELETE", f"{MEMORY}?field={each}", status=(400,)) for each in ("%00", "%ED%A0%80", "%FF")]
    found += [get(f"/v1/{each}", 404) for each in ("nothing", "", "effects/nothing")]
    none = [("PUT", "/v1/turns"), ("DELETE", "/v1/agents"), ("BREW", "/v1/turns"), ("DELETE", DRAFT)]
    found += [Bad(method, path, status=(405,)) for method, path in none]
    return found + [Bad("DELETE", f"/v1/{name}", status=(405,), by="admin") for name in ("rules", "budgets")]


def refused_requests() -> list[Bad]:
    """What is well-formed, and is about nothing or too much, or not for this caller."""
    agent = b'{"agent": "refunds"}'
    rule, budget = b'{"rule": "x", "do": "abort"}', b'{"max_tokens": 5, "max_cost_usd": null}'
    body = {"agent": "refunds", "message": "x"}
    talk = "/v1/conversations/{conversation}"
    return [
        post("/v1/conversations", {"agent": "nobody"}, 404, 422),
        post(EXECUTE, {**body, "conversation_id": "x"}, 404, 422),
        post(EXECUTE, {**body, "conversation_id": UNKNOWN}, 404),
        post(f"/v1/conversations/{UNKNOWN}/turns", {"message": "x"}, 404),
        post(TURNS, {"message": "   \n\t"}, 422),
        Bad("POST", "/v1/conversations", agent, (415,), {"content-type": "text/plain"}),
        Bad("POST", "/v1/conversations", b"agent=refunds", (415,), {"content-type": "multipart/form-data"}),
        Bad("PATCH", talk, b'{"title": "\\u0000"}'),
        Bad("PATCH", talk, b'{"title": 7}'),
        Bad("PATCH", talk, b"[", (400,)),
        Bad("POST", "/v1/conversations", agent, (400,), {"Idempotency-Key": ""}),
        Bad("PUT", MEMORY, json.dumps({"fields": {"a": "x" * 70_000}}).encode(), (413,)),
        Bad("PUT", "/v1/rules", rule, (404,), by="admin"),
        Bad("PUT", "/v1/rules", rule, (403,), by="reviewer"),
        *(
            Bad("PUT", "/v1/budgets", part, by="admin")
            for part in (b"{}", b'{"max_tokens": 5}', b'{"max_cost_usd": 5}')
        ),
        Bad("PUT", "/v1/budgets", budget, (403,)),
        Bad("POST", RAISE, b'{"max_tokens": 5}', (404,), by="reviewer"),
        Bad("POST", PROMOTION, b'{"to": "active", "digest": "x"}', (404,), by="reviewer"),
    ]


TABLE = [*spoiled_bodies(), *metadata(), *limits(), *queries(), *paths(), *refused_requests()]
