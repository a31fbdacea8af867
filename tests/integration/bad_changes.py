"""The table of bad requests, for what is set, promoted and removed: memory, drafts, rules, budgets, raised limits."""

import json

from tests.integration.bad_requests import BROKEN_BODIES, UNKNOWN, Bad

MEMORY = "/v1/memory/working/{conversation}"
DRAFT = "/v1/prompt-templates/voice/draft"
PROMOTION = f"/v1/prompt-versions/{UNKNOWN}/promote"
RAISE = f"/v1/turns/{UNKNOWN}/limits"
ANYTHING: list[object] = [True, [], {}, "\x00", "a\ud800b", ["\x00"], {"\x00": 1}, {"a": ["\udfff"]}]
"""Wrong for every field but one that holds objects."""
NO_COUNT: list[object] = [*ANYTHING, 0, -1, 1.5, -0.0, 1e16, 1e300, "60", "", 10**30]
NO_TEXT: list[object] = [*ANYTHING, None, 7, 1.5, ""]
ROUTES: list[tuple[str, str, str, dict[str, object], dict[str, list[object]]]] = [
    (
        "PUT",
        MEMORY,
        "requester",
        {"fields": {"a": 1}, "ttl_seconds": 60},
        {
            "fields": [
                *(each for each in ANYTHING if each != {}),
                None,
                7,
                "x",
                {"": 1},
                {"a b": 1},
                {"1a": 1},
                {"a\n": 1},
                {"a" * 65: 1},
                {"é": 1},
            ],
            "ttl_seconds": [*NO_COUNT, None],
        },
    ),
    ("PUT", DRAFT, "requester", {"text": "You are kind."}, {"text": [*NO_TEXT, " \n\t", "x" * 50_001]}),
    ("PUT", "/v1/rules", "admin", {"rule": "x", "do": "abort"}, {"rule": NO_TEXT, "do": [*NO_TEXT, "x" * 41]}),
    (
        "PUT",
        "/v1/rules/tools",
        "admin",
        {"tool": "memory_patch", "approval": True},
        {"tool": [*NO_TEXT, "refund", "memory_patch ", "x" * 201], "approval": [*ANYTHING[1:], None, 0, 1, "false"]},
    ),
    (
        "PUT",
        "/v1/budgets",
        "admin",
        {"max_tokens": 5, "max_cost_usd": 1.0},
        {"max_tokens": [*NO_COUNT, 2**53 + 1], "max_cost_usd": [*ANYTHING, 0, -1, -0.0, "1", 1e300, 10**10]},
    ),
    ("POST", RAISE, "reviewer", {"max_tokens": 5}, {"max_tokens": NO_COUNT, "max_cost_usd": [*ANYTHING, 0, -1, "1"]}),
    (
        "POST",
        PROMOTION,
        "reviewer",
        {"to": "active", "digest": "0" * 64},
        {"to": [*NO_TEXT, "draft", "archived", "ACTIVE"], "digest": [*ANYTHING, None, 7, "0" * 129]},
    ),
]
"""Each route, who may ask it, a body that would fit, and what is wrong for each field."""
PLACES = ("conversations", "memory/working")
"""What is removed by its id."""
NO_VALUE = (b"1e999", b"-Infinity", b"NaN", b"9" * 4_000, b"[" * 70 + b"]" * 70, b'{"a": {"b": "\\u0000"}}')
"""What no field may hold, in ways that only raw JSON can say."""


def spoiled() -> list[Bad]:
    """Every route with every kind of broken body, and every field of it with every wrong value."""
    found = []
    for method, path, by, fits, fields in ROUTES:
        found += [Bad(method, path, body, status, by=by) for body, status in BROKEN_BODIES]
        bodies = [{**fits, name: wrong} for name, values in fields.items() for wrong in values]
        bodies.append({**fits, "surprise": 1})
        found += [Bad(method, path, json.dumps(body).encode(), by=by) for body in bodies]
        for name in fields:
            marked = json.dumps({**fits, name: "HERE"}).encode()
            found += [Bad(method, path, marked.replace(b'"HERE"', each), (422, 400), by=by) for each in NO_VALUE]
    for each in NO_VALUE:
        found.append(Bad("PUT", MEMORY, b'{"fields": {"a": %s}}' % each, (422, 400)))
    return found


def refused() -> list[Bad]:
    """What is well-formed, and is about nothing or too much."""
    too_much = json.dumps({"fields": {"a": "x" * 70_000}}).encode()
    promoted = b'{"to": "active", "digest": "x"}'
    return [
        Bad("PUT", MEMORY, too_much, (413,)),
        Bad("PUT", "/v1/rules", b'{"rule": "x", "do": "abort"}', (404,), by="admin"),
        Bad("PUT", "/v1/budgets", b"{}", by="admin"),
        Bad("PUT", "/v1/budgets", b'{"max_tokens": 5}', by="admin"),
        Bad("PUT", "/v1/budgets", b'{"max_cost_usd": 5}', by="admin"),
        Bad("PUT", "/v1/budgets", b'{"max_tokens": 5, "max_cost_usd": null}', (403,)),
        Bad("PUT", "/v1/rules", b'{"rule": "x", "do": "abort"}', (403,), by="reviewer"),
        Bad("POST", RAISE, b'{"max_tokens": 5}', (404,), by="reviewer"),
        Bad("POST", PROMOTION, promoted, (404,), by="reviewer"),
        Bad("DELETE", "/v1/rules", status=(405,), by="admin"),
        Bad("DELETE", "/v1/budgets", status=(405,), by="admin"),
        Bad("DELETE", DRAFT, status=(405,)),
    ]


def addressed() -> list[Bad]:
    """Ids, names and queries that nothing has."""
    ids = ("x", "%00", "%ED%A0%80", "%FF", "..%2F..%2Fetc", UNKNOWN, UNKNOWN + "0", "a" * 3_000, "%F0%9F%98%80")
    missing = (404, 400, 422)
    found = [Bad("DELETE", f"/v1/{kind}/{each}", status=missing) for kind in PLACES for each in ids]
    found += [Bad("PUT", f"/v1/memory/working/{each}", b'{"fields": {"a": 1}}', missing) for each in ids]
    found += [
        Bad("PUT", f"/v1/prompt-templates/{each}/draft", b'{"text": "x"}', missing)
        for each in (*ids[1:5], *ids[6:], "Voice", "1x", "a b")
    ]
    found += [Bad("POST", f"/v1/prompt-versions/{each}/archive", status=missing) for each in ids]
    found += [Bad("DELETE", f"{MEMORY}?field={each}", status=(400,)) for each in ("%00", "%ED%A0%80", "%FF")]
    lists = ("/v1/prompt-templates?", "/v1/memory/episodic?conversation_id={conversation}&")
    wrong = ("limit=0", "limit=-1", "limit=x", "limit=1.5", "cursor=x", "cursor=e30", "cursor=W10", "cursor=%00")
    found += [Bad("GET", path + each, status=(422, 400)) for path in lists for each in wrong]
    return [*found, Bad("GET", "/v1/prompt-templates?stage=sideways")]


CHANGES = [*spoiled(), *refused(), *addressed()]
