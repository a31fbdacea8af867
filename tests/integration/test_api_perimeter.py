"""The outermost layer: foreign hosts, forged addresses, every answer's headers; bad input is a typed 4xx, unstored."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import permutations
from urllib.parse import quote, urlsplit

import httpx
import pytest

from perdure.api.health import PERIMETER_EVENTS
from perdure.contracts.values import digest_of
from perdure.local import DataParts
from perdure.store.database import new_id
from tests.conftest import Person, Urls
from tests.integration.conftest import Api, Caller, serving
from tests.integration.test_api_access import filled, routes
from tests.integration.test_api_turns import conversation, refusal
from tests.scale import FULL

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
    "/v1/conversations": {"agent": "refunds"}, TURNS: {"message": "/echo hi"},
    EXECUTE: {"agent": "refunds", "message": "/echo hi"},
    f"/v1/approvals/{UNKNOWN}/decision": {"decision": "approve", "digest": "0" * 64},
    "/v1/effects/pdk_x/settle": SETTLED, "/v1/users": {"name": "ann"},
    "/v1/memory/episodic": {"conversation_id": "{conversation}", "summary": "x"},
    "/v1/memory/episodic/search": {"agent": "refunds", "query": "x"},
    "/v1/users/requester/roles": {"roles": ["requester"]}, "/v1/users/requester/tokens": {"label": "x"},
}  # fmt: skip
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
    (*("PUT", "/v1/rules/tools", "admin"),
     {"tool": ("memory_patch", NO_TOOL), "approval": (True, [*ANYTHING[1:], None, 0, 1, "false"])}),
    ("PUT", "/v1/rules/related", "admin", {"related_decide": (False, [*ANYTHING[1:], None, 0, 1, "false"])}),
    (*("PUT", "/v1/budgets", "admin"), {"max_tokens": (5, [*NO_COUNT, 2**53 + 1]), "max_cost_usd": (1.0, NO_COST)}),
    ("POST", RAISE, "reviewer", {"max_tokens": (5, NO_COUNT)}),
    ("POST", RAISE, "reviewer", {"max_cost_usd": (5, [*ANYTHING, 0, -1, "1"])}),
    ("POST", PROMOTION, "reviewer", {"to": ("active", [*NO_TEXT, "draft", "archived", "ACTIVE"]), "digest": NO_DIGEST}),
]  # fmt: skip
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
        post(f"/v1/conversations/{UNKNOWN}/turns", {"message": "x"}, 404), post(TURNS, {"message": "   \n\t"}, 422),
        Bad("POST", "/v1/conversations", agent, (415,), {"content-type": "text/plain"}),
        Bad("POST", "/v1/conversations", b"agent=refunds", (415,), {"content-type": "multipart/form-data"}),
        Bad("PATCH", talk, b'{"title": "\\u0000"}'), Bad("PATCH", talk, b'{"title": 7}'),
        Bad("PATCH", talk, b"[", (400,)), Bad("POST", "/v1/conversations", agent, (400,), {"Idempotency-Key": ""}),
        Bad("PUT", MEMORY, json.dumps({"fields": {"a": "x" * 70_000}}).encode(), (413,)),
        Bad("PUT", "/v1/rules", rule, (404,), by="admin"), Bad("PUT", "/v1/rules", rule, (403,), by="reviewer"),
        *(
            Bad("PUT", "/v1/budgets", part, by="admin")
            for part in (b"{}", b'{"max_tokens": 5}', b'{"max_cost_usd": 5}')
        ),
        Bad("PUT", "/v1/budgets", budget, (403,)), Bad("POST", RAISE, b'{"max_tokens": 5}', (404,), by="reviewer"),
        Bad("POST", PROMOTION, b'{"to": "active", "digest": "x"}', (404,), by="reviewer"),
    ]  # fmt: skip


TABLE = [*spoiled_bodies(), *metadata(), *limits(), *queries(), *paths(), *refused_requests()]

EVIL = "rebound.evil.example:8080"
PROXIED = "perdure.example.org"
PAGES = ("/", "/review", "/sign-in", "/status", "/docs", "/chat", "/assets/pages.js", "/nothing")
SAFE = {"x-content-type-options": "nosniff", "cache-control": "no-store", "cross-origin-resource-policy": "same-origin"}

LIMITED = {"RATE_LIMITING_ENABLED": "1", "RATE_LIMIT_PER_MINUTE": "5"}


@pytest.fixture(scope="module")
async def proxied(parts: DataParts, urls: Urls, people: dict[str, Person]) -> AsyncIterator[Api]:
    """An API behind a reverse proxy, which is this very process."""
    settings = {
        "PERDURE_PUBLIC_URL": f"https://{PROXIED}",
        "PERDURE_ALLOWED_HOSTS": "*.tenants.example.org, ops.example.org:9443",
        "PERDURE_PROXIES": "127.0.0.1",
        "PERDURE_CONNECTIONS_PER_ADDRESS": "3",
    }
    async with serving(parts, urls, people, **LIMITED, **settings) as running:
        yield running


async def raw(api: Api, sent: bytes, seconds: float = 10.0) -> bytes:
    """What comes back for these bytes, until the server closes."""
    url = urlsplit(api.url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        writer.write(sent)
        return await asyncio.wait_for(reader.read(), seconds)
    finally:
        writer.close()


async def test_no_page_answers_a_foreign_host(api: Api) -> None:
    counter = PERIMETER_EVENTS.labels(event="host_not_allowed")._value
    async with api.client(None) as client:
        for host in ("", "evil@127.0.0.1", "0.0.0.0"):
            before = counter.get()
            answer = await client.get("/v1/turns", headers={"Host": host})
            assert refusal(answer) == (421, "host_not_allowed") and "set-cookie" not in answer.headers
            assert counter.get() == before + 1
        for path in PAGES:
            answer = await client.get(path, headers={"Host": EVIL, "Accept": "text/html,*/*"})
            assert answer.status_code == 421 and answer.headers["content-type"] == "text/plain; charset=utf-8"
        for path in ("/sign-in", "/sign-out", "/review/x/decide"):
            form = {"Content-Type": "application/x-www-form-urlencoded", "Host": EVIL}
            assert (await client.post(path, content="name=a", headers=form)).status_code == 421


async def test_forwarded_host_headers_are_ignored(api: Api, requester: Caller) -> None:
    port = urlsplit(api.url).port
    for name in ("X-Forwarded-Host", "Forwarded", "X-Original-Host", "X-Host"):
        for value in ("127.0.0.1", "host=127.0.0.1"):
            assert (await requester.get("/v1/turns", headers={"Host": EVIL, name: value})).status_code == 421, name
            assert (await requester.get("/v1/turns", headers={name: EVIL})).status_code == 200, name
    for target in (f"http://127.0.0.1:{port}/v1/turns", f"http://{EVIL}/healthz", "*", "x"):
        close = b"Connection: close\r\n\r\n"
        said = await raw(api, f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n".encode() + close)
        assert said.startswith(b"HTTP/1.1 400") and b'"target_invalid"' in said, (target, said)
    assert (await raw(api, b"GET /v1/turns HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 421")
    assert (await raw(api, b"GET /healthz HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200")


async def test_health_under_any_host_returns_one_word(admin: Caller) -> None:
    for host in ("127.0.0.1", EVIL, "10.1.2.3:8080", ""):
        for path, body in (("/healthz", {"status": "ok"}), ("/readyz", {"ready": True})):
            answer = await admin.get(path, headers={"Host": host})
            assert (answer.status_code, answer.json()) == (200, body)
            assert not {"set-cookie", "server"} & answer.headers.keys()
    for path in ("/healthz/", "//healthz", "/readyz/x", "/healthz%2f"):
        assert (await admin.get(path, headers={"Host": EVIL})).status_code == 421, path
    assert (await admin.post("/readyz", headers={"Host": EVIL})).status_code == 421


async def test_the_hosts_that_the_operator_names_are_answered(proxied: Api) -> None:
    async with proxied.client(None) as client:
        for host in (PROXIED, "a.tenants.example.org", "ops.example.org:9443", "localhost", "127.0.0.1:1"):
            assert (await client.get("/v1/turns", headers={"Host": host})).status_code == 401, host
        for host in ("tenants.example.org", "ops.example.org", "example.org", EVIL):
            assert (await client.get("/v1/turns", headers={"Host": host})).status_code == 421, host


def unsafe(answer: httpx.Response) -> list[str]:
    lacks = [name for name in SAFE if SAFE[name] != answer.headers.get(name)]
    lacks += [name for name in ("content-security-policy", "referrer-policy") if name not in answer.headers]
    if "frame-ancestors 'none'" not in answer.headers.get("content-security-policy", ""):
        lacks.append("frame-ancestors")
    return lacks + [name for name in ("server", "access-control-allow-origin") if name in answer.headers]


async def test_every_answer_of_the_api_is_nosniff_unstored_and_never_framed(api: Api) -> None:
    seen: Counter[int] = Counter()
    async with api.client() as client:
        for method, path in await routes(api):
            if "/stream" in path or path.endswith("/events"):
                continue
            answer = await client.request(method, filled(path), json={})
            seen[answer.status_code] += 1
            assert not unsafe(answer), (method, path, answer.status_code, unsafe(answer))
        for sent in (
            client.request("BREW", "/v1/turns"), client.get("/v1/nothing"),
            client.get("/v1/turns", headers={"Authorization": ""}), client.get("/v1/turns", headers={"Host": EVIL}),
            client.post("/v1/conversations", content=b"{", headers={"Content-Type": "application/json"}),
            client.post("/v1/conversations", content=b'"' + b"x" * 300_000 + b'"'), client.get("/openapi.json"),
        ):  # fmt: skip
            answer = await sent
            seen[answer.status_code] += 1
            assert not unsafe(answer), (answer.request.url, unsafe(answer))
    assert {200, 401, 403, 404, 405, 413, 421, 422} <= seen.keys()
    async with api.client() as client:
        path = f"/v1/conversations/{await conversation(client)}/stream"
        async with client.stream("GET", path) as stream:
            assert stream.status_code == 200 and not unsafe(stream)
            assert stream.headers["x-accel-buffering"] == "no"


async def test_pages_keep_their_policy_and_files_are_inert_and_unstored(api: Api) -> None:
    async with api.client() as client:
        for path in PAGES:
            answer = await client.get(path, headers={"Accept": "text/html"}, follow_redirects=True)
            assert answer.headers["x-content-type-options"] == "nosniff", path
            assert "frame-ancestors 'none'" in answer.headers["content-security-policy"], path
            assert "script-src 'self'" in answer.headers["content-security-policy"], path
            assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        talk = await conversation(client)
        where, head = f"/v1/conversations/{talk}/files?name=a.txt", {"Content-Type": "text/plain"}
        sent = await client.post(where, content="<script>hit()</script>", headers=head)
        file = await client.get(f"/v1/files/{sent.json()['id']}")
        assert "sandbox" in file.headers["content-security-policy"] and file.headers["cache-control"] == "no-store"
        assert file.headers["content-disposition"].startswith("attachment")


async def test_head_is_get_without_its_body(api: Api) -> None:
    async with api.client("admin") as client:
        talk = await conversation(client)
        gets = [path for method, path in await routes(api) if method == "GET" and "{" not in path]
        gets = [path for path in gets if "stream" not in path and "export" not in path and "oidc" not in path]
        assert len(gets) > 20
        for path in (*gets, f"/v1/conversations/{talk}", *PAGES):
            head, get = [await client.request(method, path) for method in ("HEAD", "GET")]
            assert head.status_code == get.status_code, path
            assert head.content == b"", path
            for name in ("content-type", "cache-control", "content-security-policy", "location"):
                assert head.headers.get(name) == get.headers.get(name), path
        for path in (f"/v1/conversations/{talk}/stream", "/v1/approvals/stream"):
            head = await asyncio.wait_for(client.head(path), 5)
            assert (head.status_code, head.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
            assert (await client.head(f"/v1/conversations/{new_id()}/stream")).status_code == 404
        assert (await client.get("/v1/turns")).status_code == 200, "the connection goes on"


async def test_a_body_of_two_lengths_is_refused_and_its_connection_ends(api: Api) -> None:
    for two in permutations(("Content-Length: 4\r\n", "Transfer-Encoding: chunked\r\n")):
        sent = f"POST /v1/auth/login HTTP/1.1\r\nHost: 127.0.0.1\r\n{''.join(two)}\r\n0\r\n\r\n"
        said = await raw(api, sent.encode() + b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert said.count(b"HTTP/1.1") == 1 and said.startswith(b"HTTP/1.1 400") and b"length_ambiguous" in said


async def test_without_a_token_no_body_is_requested(api: Api) -> None:
    head = b"POST /v1/conversations HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\nExpect: 100-continue\r\n"
    said = await raw(api, head + b"Connection: close\r\n\r\n", 4.0)
    assert said.startswith(b"HTTP/1.1 401") and b"100 Continue" not in said


async def addresses(client: httpx.AsyncClient, *forwarded: str) -> list[int]:
    return [(await client.get("/v1/auth/ways", headers={"X-Forwarded-For": each})).status_code for each in forwarded]


async def test_no_forwarded_address_counts(api: Api, parts: DataParts, urls: Urls, people: dict[str, Person]) -> None:
    async with serving(parts, urls, people, **LIMITED) as bare, bare.client(None) as client:
        found = await addresses(client, *(f"203.0.113.{number}" for number in range(8)))
        assert found.count(429) >= 3, "all of them are of one address"
        answer = await client.get("/sign-in", headers={"X-Forwarded-Proto": "https"})
        assert "strict-transport-security" not in answer.headers


async def test_behind_a_proxy_each_client_has_its_own_count(proxied: Api) -> None:
    async with proxied.client(None) as client:
        one = new_id()[-4:]
        mine = f"2001:db8:{one}::1"
        assert await addresses(client, *[mine] * 7) == [200] * 5 + [429] * 2
        assert await addresses(client, f"9.9.9.9, {mine}", f"1.2.3.4,{mine}:443") == [429] * 2, "its own is the last"
        assert await addresses(client, f"{mine}, 2001:db8:{one}:1::7") == [200]


async def test_behind_a_proxy_requests_are_limited_by_client_and_answers_require_tls(proxied: Api) -> None:
    head = {"X-Forwarded-For": "198.51.100.77"}
    async with proxied.client() as client, asyncio.TaskGroup() as group:
        talk = await conversation(client)
        path = f"/v1/conversations/{talk}/stream"
        held = asyncio.Event()
        opened = asyncio.Semaphore(0)

        async def hold() -> None:
            async with client.stream("GET", path, headers=head) as stream:
                assert stream.status_code == 200
                opened.release()
                await held.wait()

        readers = [group.create_task(hold()) for _ in range(3)]
        for _ in readers:
            await opened.acquire()
        refused = await client.get("/v1/auth/me", headers=head)
        assert refusal(refused) == (429, "too_many_connections")
        assert refused.headers["retry-after"] == "15"
        assert (await client.get("/v1/auth/me", headers={"X-Forwarded-For": "198.51.100.78"})).status_code == 200
        assert (await client.get("/readyz", headers=head)).status_code in (200, 429)
        held.set()
        answer = await client.get("/sign-in", headers={"X-Forwarded-For": "198.51.100.99"})
        assert answer.headers["strict-transport-security"] == "max-age=31536000"


COUNTED = (
    "users", "api_tokens", "conversations", "turns", "messages", "tool_calls", "approvals", "audit", "events", "outbox",
    "idempotency", "working_memory", "entities", "episodes", "day_limits", "prompt_versions",
)  # fmt: skip


@pytest.fixture(scope="module")
async def ended_turn(api: Api) -> dict[str, str]:
    """A conversation, and a turn of it that is over."""
    async with api.client() as client:
        conversation_id = await conversation(client)
        body = {"message": "/echo settled"}
        turn = await client.post(f"/v1/conversations/{conversation_id}/turns", params={"wait": 20}, json=body)
        await client.get(f"/v1/turns/{turn.json()['turn_id']}/events")
    return {"conversation": conversation_id, "turn": turn.json()["turn_id"]}


async def stored(api: Api) -> dict[str, int]:
    async with api.services.db.transaction("local") as tx:
        return {name: await tx.fetchval(f"SELECT count(*) FROM {name}") for name in COUNTED}


def fault(answer: httpx.Response, bad: Bad) -> str | None:
    about = f"{bad.method} {bad.path[:120]} {(bad.body or b'')[:80]!r} -> {answer.status_code} {answer.text[:200]}"
    if answer.status_code not in bad.status:
        return f"{about}, wanted {bad.status}"
    error = answer.json().get("error", {})
    if error.keys() != {"code", "message", "details", "request_id"} or not isinstance(error["details"], dict):
        return f"{about}: not the one error form"
    if not error["code"] or not error["message"] or error["request_id"] != answer.headers["x-request-id"]:
        return f"{about}: says nothing"
    return None


@pytest.mark.sized
async def test_each_malformed_request_is_a_typed_4xx_and_not_cached(
    api: Api, ended_turn: dict[str, str], requester: Caller, reviewer: Caller, admin: Caller
) -> None:
    clients = {"requester": requester, "reviewer": reviewer, "admin": admin}
    before = await stored(api)
    faults = []
    for number, bad in enumerate(TABLE):
        path = bad.path.replace("{conversation}", ended_turn["conversation"]).replace("{turn}", ended_turn["turn"])
        sent = [{**JSON, **bad.headers} if bad.body is not None else bad.headers]
        if "Idempotency-Key" not in sent[0] and bad.body is not None and (FULL or number % 8 == 0):
            sent.append({**sent[0], "Idempotency-Key": "bad"})
        for headers in sent:
            answer = await clients[bad.by].request(bad.method, path, content=bad.body, headers=headers)
            faults.append(fault(answer, bad))
    found = [each for each in faults if each]
    assert not found, "\n".join(found)
    assert await stored(api) == before
    assert len(TABLE) > 1_100


async def test_an_enormous_limit_is_clamped_like_any_other(requester: Caller) -> None:
    for path in ("conversations", "turns", "approvals", "effects", "prompt-templates"):
        for limit in ("1" * 30, "9" * 5_000, "0" * 20 + "7"):
            answer = await requester.get(f"/v1/{path}", params={"limit": limit})
            assert answer.status_code == 200, (path, limit[:9], answer.text)


async def test_an_unsupported_message_is_refused_by_its_field(requester: Caller, ended_turn: dict[str, str]) -> None:
    for kind in ("image_url", "input_audio"):
        body = {"message": [{"type": kind, kind: {"data": "AAAA"}}]}
        answer = await requester.post(f"/v1/conversations/{ended_turn['conversation']}/turns", json=body)
        assert answer.status_code == 422
        assert answer.json()["error"]["details"]["fields"][0]["field"] == "body.message"


async def test_unusual_valid_text_is_stored_unchanged(requester: Caller) -> None:
    text = "é \U0001f600 \u202e bidi \ufffd \r\n tab\t 𝔘𝔫𝔦 " + "\\u0000 is only text here"
    made = await conversation(requester, title=text, metadata={text: text})
    shown = (await requester.get(f"/v1/conversations/{made}")).json()
    assert (shown["title"], shown["metadata"]) == (text, {text: text})
