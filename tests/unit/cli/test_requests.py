"""What the commands send with their options, and how they end where they are refused: one line per case."""

import json
import shlex
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.unit.apps.api_double import Reply, reply
from tests.unit.cli import test_outputs as outputs
from tests.unit.cli.conftest import APPROVAL, Perdure, refusal, request
from tests.unit.cli.test_outputs import BUDGETS, EFFECT, RULE, TOOLS, VERSION, items

NONE = items()
SETTLED = {"key": "pdk_1", "outcome": "happened", "settled_by": "reviewer"}
DECIDES = [reply(APPROVAL), reply(APPROVAL)]
DECIDED = [reply(APPROVAL | {"status": "approved"})] * 2
LIMITED = [reply(BUDGETS | {"tenant": {"max_tokens": 5_000, "max_cost_usd": 12.5}}), reply(BUDGETS)]
SETTLE = "effects settle pdk_1 happened --comment seen"
EVIL = "\x1b[2J\u202e"


@pytest.mark.parametrize(("line", "replies", "asked"), [
    ("turns list --status running", [NONE], "requester GET /v1/turns status=running&limit=20"),
    ("turns list --as reviewer", [NONE], "reviewer GET /v1/turns limit=20"),
    ("approvals list --status all", [NONE], "reviewer GET /v1/approvals limit=50"),
    ("approvals list --mine --assignee rita --role reviewer --expiring 60", [NONE],
     "reviewer GET /v1/approvals status=pending&assignee=rita&role=reviewer&mine=true&expiring=60&limit=50"),
    ("approvals claim a-1 --seconds 60", [reply(APPROVAL)], 'reviewer POST /v1/approvals/a-1/claim {"seconds": 60}'),
    ("approvals reassign a-1 tom --comment away", [reply(APPROVAL)],
     'reviewer POST /v1/approvals/a-1/reassign {"to": "tom", "comment": "away"}'),
    ("approvals approve a-1 --comment fine", DECIDES,
     'reviewer POST /v1/approvals/a-1/decision '
     '{"decision": "approve", "digest": "d…", "revision": 2, "comment": "fine"}'),
    ("approvals approve a-1 --digest seen --revision 1 --json", DECIDES,
     'reviewer POST /v1/approvals/a-1/decision {"decision": "approve", "digest": "seen", "revision": 1}'),
    ("approvals reject a-1 --comment no", DECIDES,
     'reviewer POST /v1/approvals/a-1/decision {"decision": "reject", "digest": "d…", "revision": 2, "comment": "no"}'),
    ("approvals withdraw a-1 --comment no", DECIDES, 'requester POST /v1/approvals/a-1/withdraw {"comment": "no"}'),
    ("approvals withdraw a-1 --as admin", DECIDES, "admin POST /v1/approvals/a-1/withdraw {}"),
    ("approvals withdraw a-1", DECIDED, "reviewer POST /v1/approvals/a-1/withdraw {}"),
    ("delegations list --all", [NONE], "admin GET /v1/delegations all=true"),
    *(
        (f"delegations add tom --until {until}", [reply(outputs.LENT, 201)],
         f'reviewer POST /v1/delegations {{"to": "tom", "until": "{sent}"}}')
        for until, sent in (
            ("2027-01-31", "2027-02-01T00:00:00+00:00"),  # to the end of the day
            ("2027-01-31T12:00Z", "2027-01-31T12:00:00+00:00"),
            ("2027-01-31T12:00", "2027-01-31T12:00:00+00:00"),
            ("2027-01-31T12:00+02:00", "2027-01-31T12:00:00+02:00"),
        )
    ),
    *(
        (f"budgets set {words}", LIMITED, f'admin PUT /v1/budgets {{"max_tokens": {tokens}, "max_cost_usd": {usd}}}')
        for words, tokens, usd in (
            ("--tokens 9000", "9000", "12.5"), ("--usd 3", "5000", "3.0"), ("--no-tokens", "null", "12.5"),
            ("--no-usd", "5000", "null"), ("--tokens 9000 --no-usd", "9000", "null"),
            ("--no-tokens --no-usd", "null", "null"),
        )
    ),
    ("budgets set --usd 3", [reply(BUDGETS | {"tenant": None}), reply(BUDGETS)],
     'admin PUT /v1/budgets {"max_tokens": null, "max_cost_usd": 3.0}'),
    ("memory set c-1 n=1 gone=null 'note=two words' 'list=[\"a\"]' a=b=c z=NaN --ttl-seconds 9",
     [reply(outputs.MEMORY)],
     'requester PUT /v1/memory/working/c-1 {"fields": {"n": 1, "gone": null, "note": "two words", "list": ["a"], '
     '"a": "b=c", "z": "NaN"}, "ttl_seconds": 9}'),
    ("prompts list --template voice --stage draft", [NONE],
     "reviewer GET /v1/prompt-templates template=voice&stage=draft&limit=50"),
    ("prompts show voice --rendered", [reply(VERSION)], "requester GET /v1/prompt-templates/voice/render"),
    ("prompts promote v-1", [reply(VERSION | {"stage": "pre_production"}), reply(VERSION | {"stage": "active"})],
     'reviewer POST /v1/prompt-versions/v-1/promote {"to": "active", "digest": "d…"}'),
    ("rules waive memory_patch --undo", [items(*TOOLS)],
     'admin PUT /v1/rules/tools {"tool": "memory_patch", "approval": true}'),
    ("users role bob requester reviewer", [reply(outputs.USER)],
     'admin POST /v1/users/bob/roles {"roles": ["requester", "reviewer"]}'),
])  # fmt: skip
def test_a_command_sends_its_request(cli: Perdure, line: str, replies: list[Reply], asked: str) -> None:
    cli.will(*replies)
    assert cli(*shlex.split(line)).code == 0
    assert request(cli.asked[-1]) == asked
    assert len(cli.asked) == len(replies)
    assert "idempotency-key" in cli.asked[-1].headers or not asked.startswith("reviewer POST /v1/approvals")


@pytest.mark.parametrize(("line", "replies", "told"), [
    ("approvals list", [items(APPROVAL)], {"next": None}),
    ("approvals show a-1", [reply(APPROVAL)], {"id": "a-1", "args": APPROVAL["args"], "schema": APPROVAL["schema"]}),
    ("approvals claim a-1", [reply(outputs.CLAIMED)], {"id": "a-1", "claimed_by": "rita"}),
    ("approvals ageing", [items(outputs.AGEING)], {"items": [outputs.AGEING]}),
    ("approvals ageing", [NONE], {"items": []}),
    ("budgets set --tokens 5000", LIMITED, {"day": "2026-11-21"}),
    ("delegations list", [NONE], {"items": []}),
    ("delegations remove d-1", [Reply(204)], {"id": "d-1", "removed": True}),
    ("rules set desk/parcels:booked abort", [items(RULE, RULE | {"id": "other"})], {"items": [RULE]}),
    ("rules tools", [items(*TOOLS)], {"items": TOOLS}),
])  # fmt: skip
def test_json_is_what_the_api_returned(cli: Perdure, line: str, replies: list[Reply], told: dict[str, Any]) -> None:
    cli.will(*replies)
    ended = cli(*line.split(), "--json")
    assert (ended.code, {name: ended.json[name] for name in told}) == (0, told)


@pytest.mark.parametrize(("line", "replies", "told"), [
    ("audit verify", [reply(outputs.BROKEN)], {"ok": False, "faults_by_kind": outputs.BROKEN["faults_by_kind"]}),
    ("status", [reply({}), reply(outputs.STATUS)], {"well": False}),
])  # fmt: skip
def test_a_fault_found_exits_with_1(cli: Perdure, line: str, replies: list[Reply], told: dict[str, Any]) -> None:
    cli.will(*replies, *replies)
    assert cli(*line.split()).code == 1
    as_json = cli(*line.split(), "--json")
    assert (as_json.code, {name: as_json.json[name] for name in told}) == (1, told)


def test_the_days_of_a_delegation_are_counted_from_now(cli: Perdure) -> None:
    assert cli("delegations add tom --days 3", reply(outputs.LENT, 201)).code == 0
    sent = datetime.fromisoformat(cli.asked[0].body["until"])
    assert abs(sent - datetime.now(UTC) - timedelta(days=3)) < timedelta(minutes=1)


AMOUNTS = [
    *(f"--usd={amount}" for amount in ("nan", "inf", "-inf", "1e400", "-1", "0", "2e9", "much")),
    *(f"--tokens={amount}" for amount in ("0", "-1", "1e3", str(2**53 + 1))),
]


@pytest.mark.parametrize(("line", "named"), [
    ("nonsense", []), ("turns show", []), ("turns list --limit no", ["--limit"]),
    ("turns list --as mallory", ["requester"]), ("turns raise t-1", []), ("users add", []),
    ("up --routing zz", ["--routing", "compact", "spread"]), ("link nobody", []), ("chat refunds -m ''", []),
    ("chat refunds -m ' \n\t'", []), ("chat refunds --on-busy never -m hi", ["--on-busy"]),
    ("chat charts --file nowhere.csv -m hi", ["nowhere.csv"]),
    ("chat charts --file picture.gif -m hi", ["picture.gif"]), ("files upload c-1 nowhere.csv", ["nowhere.csv"]),
    ("files upload c-1 picture.gif", ["picture.gif"]),
    ("approvals list --status bogus", ["pending", "approved", "withdrawn", "all"]),
    ("approvals respond a-1 ''", ["TEXT"]), ("approvals respond a-1 ' \n'", ["TEXT"]),
    ("approvals reject a-1 --comment ' '", []), ("approvals batch reject a-1", []), ("approvals batch edit a-1", []),
    ("approvals batch approve", []),
    ("approvals batch approve " + " ".join(f"a-{number}" for number in range(101)), []),
    ("effects settle pdk_1 maybe --comment x", []), ("delegations add tom", []),
    ("delegations add tom --until tomorrow", []), ("delegations add tom --until 2027-13-01", []),
    ("delegations add tom --until 9999-12-31", []), ("delegations add tom --days 0", []),
    ("delegations add tom --days 1 --until 2027-01-31", []), ("memory set c-1 n", []),
    *((f"turns raise t-1 --usd {amount}", ["--usd"]) for amount in ("nan", "inf", "-1", "1e10")),
    *((f"link --path {path}", ["--path", path]) for path in ("http://elsewhere", "//elsewhere", "review")),
    ("memory promotions reject p-1", []), ("prompts edit voice --file /nowhere/at/all", []),
    ("audit verify --heads /nowhere/at/all", ["/nowhere/at/all"]), ("budgets set", []),
    ("budgets set --tokens 5 --no-tokens", []), ("budgets set --usd 5 --no-usd", []),
    *((f"budgets set {amount}", [amount.partition("=")[0]]) for amount in AMOUNTS),
])  # fmt: skip
def test_an_invalid_command_line_is_a_usage_error_and_asks_nothing(cli: Perdure, line: str, named: list[str]) -> None:
    ended = cli(*shlex.split(line))
    assert (ended.code, ended.out, cli.asked) == (2, "", [])
    assert all(each in ended.err for each in named) and "Traceback" not in ended.err


@pytest.mark.parametrize(("line", "status", "code", "exit_code"), [
    ("turns show t", 404, "turn_not_found", 4), ("turns show t", 401, "token_invalid", 1),
    ("turns show t", 500, "internal", 1), ("audit export --as requester", 403, "role_required", 1),
    ("link", 403, "codes_are_local", 1), ("approvals preview a-1", 422, "invalid_input", 2),
    ("approvals claim a-1", 404, "approval_not_found", 4), ("approvals claim a-1", 409, "claimed", 1),
    ("approvals escalate a-1", 409, "already_escalated", 5), ("approvals escalate a-1", 410, "approval_expired", 6),
    ("approvals release a-1", 409, "already_decided", 5), ("approvals approve a-1", 409, "digest_differs", 1),
    ("approvals withdraw a-1", 409, "already_running", 5),
    ("effects settle pdk_1 happened --comment x", 409, "already_settled", 5),
    ("effects settle pdk_1 happened --comment x", 409, "too_early", 1),
])  # fmt: skip
def test_a_refusal_has_its_exit_code(cli: Perdure, line: str, status: int, code: str, exit_code: int) -> None:
    first = {"approve": [reply(APPROVAL)], "withdraw": [reply(APPROVAL)], "settle": [reply(EFFECT)]}
    cli.will(*first.get(line.split()[-1 if line == "link" else 1], []), refusal(status, code))
    ended = cli(*line.split())
    assert (ended.code, code in ended.err) == (exit_code, True)
    if line.startswith("turns"):
        cli.will(refusal(status, code))
        ended = cli(*line.split(), "--json")
        assert (ended.code, ended.out, json.loads(ended.err)["error"]["code"]) == (exit_code, "", code)


@pytest.mark.parametrize(("status", "code", "details", "named"), [
    (409, "already_decided", {"decision": {"type": "reject", "by": "rita", "comment": "no"}}, ["reject", "rita"]),
    (422, "invalid_input", {"fields": [{"field": "body.title", "problem": "long"}]}, ["body.title", "long"]),
    (429, "quota_reached", {"scope": "user", "retry_after_seconds": None}, ["files usage"]),
    (409, "too_early", {"deadline": "2026-11-21T10:00:00Z"}, ["2026-11-21T10:00:00Z"]),
])  # fmt: skip
def test_a_refusal_has_details(cli: Perdure, status: int, code: str, details: dict[str, Any], named: list[str]) -> None:
    ended = cli("turns show t", refusal(status, code, details))
    assert all(each in ended.err for each in named) and "None" not in ended.err and ended.out == ""


@pytest.mark.parametrize(("line", "replies"), [
    ("turns show t", [reply({"error": {"code": "x", "message": EVIL, "details": {}}}, 404)]),
    ("turns show t-1", [reply(outputs.TURN | {"answer": EVIL}), items()]), ("approvals show a-1", [reply(APPROVAL)]),
    ("approvals preview a-1", [reply(APPROVAL | {"preview": {"at": outputs.AT, "fault": EVIL}})]),
    ("approvals approve a-1", DECIDES), ("effects list", [items(EFFECT | {"args": {"text": EVIL}})]),
    ("effects show k", [reply(EFFECT | {"args": {"text": EVIL}, "approval": {"id": "a", "decided_by": EVIL}})]),
    ("memory show c-1", [reply(outputs.MEMORY | {"fields": {"note": EVIL}})]),
    ("memory promotions approve p-1", [reply(outputs.PROPOSED | {"content": EVIL})] * 2),
    ("prompts show voice", [reply(VERSION | {"text": EVIL})]),
    ("prompts promote v-1", [reply(VERSION | {"text": EVIL})] * 2),
    ("status", [reply({}), reply(outputs.STATUS | {"parts": [{"name": "relay", "fault": EVIL}]})]),
])  # fmt: skip
def test_text_from_outside_cannot_control_the_terminal(cli: Perdure, line: str, replies: list[Reply]) -> None:
    cli.will(*replies)
    ended = cli(*line.split())
    shown = ended.out + ended.err
    assert "\\u001b[" in shown and "\\u202e" in shown and not set(shown) & {"\x1b", "\u202e"}


@pytest.mark.parametrize(("answer", "words", "sent"), [(True, "", 1), (False, "", 0), (False, " --yes", 1)])
@pytest.mark.parametrize(
    "line", ["approvals approve a-1", "approvals withdraw a-1", "approvals batch approve a-1", SETTLE]
)
def test_a_user_at_a_terminal_confirms_before_the_request(
    cli: Perdure, monkeypatch: pytest.MonkeyPatch, line: str, answer: bool, words: str, sent: int
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda _question: answer)
    first, last = (EFFECT, SETTLED) if line == SETTLE else (APPROVAL, APPROVAL | {"status": "approved"})
    ended = cli(line + words, reply(first), items(last) if "batch" in line else reply(last))
    assert (ended.code, len(cli.asked)) == (1 - sent, 1 + sent)
