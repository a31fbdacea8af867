"""The pages of a conversation and of a turn, with a scripted API."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.client import ConversationTurn
from perdure.pages.chat import PAGE_CHARACTERS, TurnView, allot_characters
from tests.unit.pages.conftest import Browse, SpokenApi, ok, problem

CONVERSATION, TURN, APPROVAL, QUESTION = (f"0192{digit}000-0000-7000-8000-000000000000" for digit in "1234")
PATH = f"/chat/{CONVERSATION}"
TURNS = f"/v1/conversations/{CONVERSATION}/turns"
HOSTILE = "<script>window.hit = 1</script>\u202egnp"
LIVE = {"HX-Request": "true"}
texts = st.integers(0, 2 * PAGE_CHARACTERS).map(lambda length: "x" * length)
TURN_PATH = f"/turns/{TURN}"


@pytest.fixture
def turn(api: SpokenApi) -> dict[str, Any]:
    """A turn as the API tells it; what is changed here is changed there."""
    turn: dict[str, Any] = {
        "turn_id": TURN, "conversation_id": CONVERSATION, "status": "completed", "agent": "desk", "answer": "done it",
        "said": [{"id": "m1", "content": HOSTILE, "waits": False}],
        "segments": [{"kind": "text", "call_id": "m1", "text": "I look. " + HOSTILE, "state": "completed"},
            {"kind": "tool", "call_id": "t1.0", "tool": "pay", "state": "executing", "arguments": {"to": HOSTILE}},
            {"kind": "message", "call_id": "m2", "text": "and be quick", "state": "completed"},
            {"kind": "text", "call_id": "m2", "text": "done it", "state": "completed"}],
        "files": [
            {"id": "f1", "name": "a.png", "media_type": "image/png", "size_bytes": 1, "conversation_id": CONVERSATION},
            {"id": "f2", "name": "a.svg", "media_type": "image/svg+xml", "size_bytes": 1, "conversation_id": "c"},
            {"id": "f3", "name": "a.json", "media_type": "application/json", "size_bytes": 1, "conversation_id": "c"},
        ],
    }  # fmt: skip
    agents = [{"id": "desk", "title": "Help desk", "examples": ["Ask <me>"], "files": []}]
    api.answers |= {
        f"/v1/conversations/{CONVERSATION}": ok({"id": CONVERSATION, "agent": "desk", "title": HOSTILE}),
        f"/v1/conversations/{CONVERSATION}/story": ok({"items": [turn], "next": None, "seq": 7, "own": True}),
        "/v1/agents": ok({"items": agents}),
    }
    return turn


async def test_words_are_in_order_and_inert(turn: dict[str, Any], browse: Browse) -> None:
    page = (await browse(PATH)).text
    assert page.count("&lt;script&gt;window.hit") == 5 and "<script>window" not in page and "\u202e" not in page
    places = [page.index(words) for words in ("I look", "<code>pay</code>", "and be quick", "done it</p>")]
    assert places == sorted(places) and page.count("done it") == 1, "the answer is one of the parts"
    assert page.count("<img") == 1 and 'src="/v1/files/f2"' in page and page.count(" download>") == 3
    assert f'data-stream="/v1/conversations/{CONVERSATION}/stream?after=7"' in page
    assert "hidden disabled" in page and 'name="on_busy"' in page and "/stop" not in page


async def test_answer_failure_and_colors_are_shown_without_parts(turn: dict[str, Any], browse: Browse) -> None:
    colours = ["#4c78a8", 'red" onload="x', 7]
    turn |= {"answer": "a template's words", "status": "failed", "error": {"code": "x", "message": HOSTILE}}
    turn["output"] = {"suggestions": [{"kind": "custom_palette", "colors": colours}]}
    page = (await browse(PATH)).text
    assert page.count("<rect") == 1 and 'fill="#4c78a8"' in page and "onload" not in page
    assert "a template&#39;s words" in page and "failed" in page
    assert "<script>window" not in page


async def test_ones_own_conversation_goes_on_by_one_click(api: SpokenApi, turn: dict[str, Any], browse: Browse) -> None:
    proposed = [{"kind": "text", "text": f"{HOSTILE} {number}"} for number in range(5)]
    turn["output"] = {"suggestions": [{"kind": "custom_palette", "colors": ["#000"]}, "odd", *proposed]}
    page = (await browse(PATH)).text
    assert page.count('<button name="message"') == 3 and "<script>window" not in page
    turn["output"] = {"suggestions": {"kind": "text"}}
    assert '<button name="message"' not in (await browse(PATH)).text
    turn["output"] = {"suggestions": proposed}
    story = f"/v1/conversations/{CONVERSATION}/story"
    api.answers[story] = ok({"items": [turn], "next": None, "seq": 7, "own": False})
    others = (await browse(PATH)).text
    assert '<button name="message"' not in others and 'id="say"' not in others


async def test_an_open_turn_can_be_stopped_and_words_meanwhile_need_a_way(turn: dict[str, Any], browse: Browse) -> None:
    turn |= {"status": "running", "said": [*turn["said"], {"id": "m9", "content": "also this", "waits": True}]}
    page = (await browse(PATH)).text
    assert 'data-open="' in page and f'action="{PATH}/turns/{TURN}/stop"' in page
    assert "hidden disabled" not in page and "also this</p>" in page
    turn["stop_requested_at"] = "2026-01-01T10:00:00Z"
    assert f"{TURN}/stop" not in (await browse(PATH)).text


def add_approval(api: SpokenApi, turn: dict[str, Any], **changed: Any) -> None:
    turn |= {"status": "awaiting_approval", "waiting_for": {"kind": "approval", "ids": [APPROVAL]}}
    approval = {
        "id": APPROVAL, "status": "pending", "tool": "pay", "args": {"amount": 7, "to": HOSTILE}, "digest": "d" * 64,
        "risk": "high", "requested_by": "ann", "reviewer_role": "reviewer", "expires_at": "2099-01-01T00:00:00Z",
        "allowed_decisions": ["approve", "edit", "reject"], **changed,
    }  # fmt: skip
    api.answers[f"/v1/approvals/{APPROVAL}"] = ok(approval)


async def test_a_reviewer_decides_beside_the_words(api: SpokenApi, turn: dict[str, Any], browse: Browse) -> None:
    add_approval(api, turn)
    page = (await browse(PATH)).text
    assert page.count(f'action="/review/{APPROVAL}/decision"') == 2 and f'href="/review/{APPROVAL}#edit"' in page
    assert '<span class="plain-value">7</span>' in page and "d" * 12 in page
    api.answers[f"/v1/approvals/{APPROVAL}/decision"] = api.answers[f"/v1/approvals/{APPROVAL}"]
    back = re.search(r'name="back" value="([^"]+)"', page)
    assert back is not None and back[1] == f"{PATH}#turn-{TURN}"
    here = f"/review/{APPROVAL}"
    for wanted, leads_to in ((back[1], back[1]), ("//evil.example", here), ("", here)):
        form = {"csrf": "f-1", "decision": "approve", "digest": "d" * 64, "back": wanted}
        answer = await browse(f"/review/{APPROVAL}/decision", "POST", data=form)
        assert (answer.status_code, answer.headers["location"]) == (303, leads_to)


@pytest.mark.parametrize(("requester", "status", "offered"), [
    ("rita", "pending", True), ("rita", "approved", False), ("ann", "pending", False),
])  # fmt: skip
async def test_a_requester_takes_a_pending_request_back_beside_its_call(
    api: SpokenApi, turn: dict[str, Any], browse: Browse, requester: str, status: str, offered: bool
) -> None:
    add_approval(api, turn, requested_by=requester, status=status, revision=2)
    way = f"/review/{APPROVAL}/withdraw"
    assert (f'action="{way}"' in (await browse(PATH)).text) == offered
    api.answers[f"/v1/approvals/{APPROVAL}/withdraw"] = api.answers[f"/v1/approvals/{APPROVAL}"]
    there = f"{PATH}#turn-{TURN}"
    for wanted, leads_to in ((there, there), ("//evil.example", f"/review/{APPROVAL}")):
        answer = await browse(way, "POST", data={"csrf": "f-1", "back": wanted})
        assert (answer.status_code, answer.headers["location"]) == (303, leads_to)


async def test_who_cannot_decide_sees_the_reviewers(api: SpokenApi, turn: dict[str, Any], browse: Browse) -> None:
    for changed, names in (
        ({"requested_by": "rita", "allowed_decisions": []}, ["reviewer"]),
        ({"reviewers": ["bea", "bob"], "allowed_decisions": []}, ["bea", "bob"]),
        ({"claimed_by": "carl", "claimed_until": "2099-01-01T00:00:00Z", "allowed_decisions": []}, ["carl"]),
        ({"args": {"text": "x" * 9_000}}, [f'href="/review/{APPROVAL}']),
    ):
        add_approval(api, turn, **changed)
        page = (await browse(PATH)).text
        assert all(name in page for name in names) and "/decision" not in page


async def test_a_field_or_an_option_answers_a_question(api: SpokenApi, turn: dict[str, Any], browse: Browse) -> None:
    turn |= {"status": "awaiting_answer", "waiting_for": {"kind": "clarification", "ids": [QUESTION]}}
    schema = {"type": "object", "properties": {"text": {"type": "string", "minLength": 1}}, "required": ["text"]}
    question = {
        "id": QUESTION, "turn_id": TURN, "kind": "clarification", "status": "pending", "answer_schema": schema,
        "asked": {"question": HOSTILE, "options": ["the first", "the second"]},
    }  # fmt: skip
    address = f"/v1/turns/{TURN}/answers/{QUESTION}"
    api.answers[address] = ok(question)
    page = (await browse(PATH)).text
    assert 'name="arg.0"' in page and 'name="option" value="the second"' in page and "<script>window" not in page
    to = f"{PATH}/turns/{TURN}/answers/{QUESTION}"
    for form, text in (({"arg.0": "in my words"}, "in my words"), ({"option": "the second"}, "the second")):
        answer = await browse(to, "POST", data={"csrf": "f-1", **form})
        assert answer.headers["location"] == f"{PATH}#turn-{TURN}"
        sent = next(request for request in reversed(api.asked) if request.method == "POST")
        assert api.bodies[-1] == {"kind": "clarification", "payload": {"text": text}}, sent.url
    api.answers[address] = (422, problem("answer_unfit", "it does not fit"))
    assert (await browse(to, "POST", data={"csrf": "f-1", "arg.0": "x"})).status_code == 422


async def test_work_on_client_data_has_its_command(api: SpokenApi, turn: dict[str, Any], browse: Browse) -> None:
    turn |= {"status": "awaiting_answer", "waiting_for": {"kind": "client_run", "ids": [QUESTION]}}
    question: dict[str, Any] = {
        "id": QUESTION, "turn_id": TURN, "kind": "client_run", "status": "pending", "answer_schema": {},
        "asked": {"plan": "<plan/>", "table": 'sa"les', "visualization": "a by b"},
    }  # fmt: skip
    api.answers[f"/v1/turns/{TURN}/answers/{QUESTION}"] = ok(question)
    page = (await browse(PATH)).text
    assert f"finish(perdure, &#34;{TURN}&#34;, ClientTable.read(&#34;way/to/sa\\&#34;les.csv&#34;))" in page
    assert "Client(&#34;http://perdure.example&#34;" in page and "&lt;plan/&gt;" in page
    question["asked"] = {"fetch": "x"}
    page = (await browse(PATH)).text
    assert f"bin/perdure turns answer {TURN} --payload answer.json" in page and "finish(" not in page


async def test_what_is_not_taken_comes_back_with_its_key(api: SpokenApi, turn: dict[str, Any], browse: Browse) -> None:
    api.answers[TURNS] = (409, problem("conversation_busy", "a turn is open"))
    form = {"csrf": "f-1", "key": "k-1", "message": "say <b>this</b>"}
    answer = await browse(PATH, "POST", data=form)
    assert answer.status_code == 409
    live = await browse(PATH, "POST", data=form, headers=LIVE)
    assert live.status_code == 200 and "<html" not in live.text
    for text in (answer.text, live.text):
        assert 'role="alert"' in text and "say &lt;b&gt;this" in text and 'value="k-1"' in text
        assert "hidden disabled" not in text, "now it must be said what becomes of it"
    stale = await browse(PATH, "POST", data={**form, "csrf": "another"})
    assert stale.status_code == 403 and f'action="{PATH}/draft"' in stale.text
    kept = await browse(f"{PATH}/draft", "POST", data=form)
    assert kept.status_code == 200 and "say &lt;b&gt;this" in kept.text


async def test_a_script_gets_the_form_anew_and_the_turn(api: SpokenApi, turn: dict[str, Any], browse: Browse) -> None:
    api.answers[TURNS] = (202, {"turn_id": TURN, "conversation_id": CONVERSATION, "status": "accepted"})
    live = await browse(PATH, "POST", data={"csrf": "f-1", "key": "k-1", "message": "hi"}, headers=LIVE)
    assert f'data-started="{TURN}"' in live.text and 'value="k-1"' not in live.text
    part = await browse(f"{PATH}/turns/{TURN}", headers=LIVE)
    assert part.status_code == 200 and part.text.lstrip().startswith(f'<div class="rendered" id="rendered-{TURN}"')
    whole = await browse(f"{PATH}/turns/{TURN}")
    assert (whole.status_code, whole.headers["location"]) == (303, f"{PATH}#turn-{TURN}")


async def test_a_long_or_foreign_file_is_refused(api: SpokenApi, turn: dict[str, Any], browse: Browse) -> None:
    files = {"file": ("a.csv", b"a\n1\n", "text/csv")}
    foreign = await browse(f"{PATH}/files", "POST", files=files, headers={"Origin": "https://elsewhere.example"})
    assert foreign.status_code == 403
    assert (await browse(f"{PATH}/files", "POST", files=files, data={"csrf": "another"})).status_code == 403
    plain = await browse(f"{PATH}/files", "POST", data={"csrf": "f-1"})
    assert plain.status_code == 415
    long = {"Content-Type": "multipart/form-data; boundary=x", "Content-Length": "209715200"}
    refused = await browse(f"{PATH}/files", "POST", content=b"x", headers={**long, **LIVE})
    assert refused.status_code == 413
    assert "20 MB" in refused.text and "200 MB" in refused.text
    for came, leads in (("http://perdure.example" + PATH, True), ("http://elsewhere.example" + PATH, False)):
        plain = await browse(f"{PATH}/files", "POST", content=b"x", headers={**long, "Referer": came})
        assert (f'<a href="{PATH}">' in plain.text) is leads
    api.answers["/v1/agents"] = ok({"items": [{"id": "desk", "title": "Help desk", "files": ["text/csv"]}]})
    api.answers[f"/v1/conversations/{CONVERSATION}/files"] = ok({"items": []})
    page = (await browse(PATH)).text
    assert "20 MB" in page and 'data-most-bytes="20971520"' in page, "it is said before a file is sent"


async def test_a_full_quota_is_shown_above_the_typed_text(api: SpokenApi, turn: dict[str, Any], browse: Browse) -> None:
    why = "you keep 1 GB, and the quota is 1 GB: delete files"
    api.answers[TURNS] = (429, problem("quota_reached", why))
    kept = await browse(PATH, "POST", data={"csrf": "f-1", "key": "k-1", "message": "say <b>this"})
    assert kept.status_code == 429 and 'role="alert"' in kept.text
    assert "say &lt;b&gt;this" in kept.text and "retry-after" not in kept.headers
    api.answers["/v1/conversations"] = (429, problem("quota_reached", why))
    begun = await browse("/chat", "POST", data={"csrf": "f-1", "key": "k-1", "agent": "desk"})
    assert begun.status_code == 429 and 'role="alert"' in begun.text


async def test_a_click_on_a_question_asks_its_agent(api: SpokenApi, turn: dict[str, Any], browse: Browse) -> None:
    api.answers["/v1/conversations"] = ok({"items": [{"id": CONVERSATION, "agent": "desk", "title": HOSTILE}]})
    page = (await browse("/chat")).text
    assert 'name="example" value="Ask &lt;me&gt;"' in page and f'href="{PATH}"' in page
    assert "<script>window" not in page
    api.answers["/v1/conversations"] = (201, {"id": CONVERSATION, "agent": "desk"})
    api.answers[TURNS] = (429, problem("too_many_turns", "you have too many"))
    refused = await browse("/chat", "POST", data={"csrf": "f-1", "key": "k", "agent": "desk", "example": "Ask <me>"})
    assert refused.status_code == 429 and 'role="alert"' in refused.text
    assert "Ask &lt;me&gt;</textarea>" in refused.text


async def test_without_an_agent_a_page_says_how_to_publish(
    api: SpokenApi, turn: dict[str, Any], browse: Browse
) -> None:
    api.answers["/v1/conversations"] = ok({"items": []})
    api.answers["/v1/agents"] = ok({"items": []})
    assert "--app DIR" in (await browse("/chat")).text


async def test_a_links_code_is_posted_and_never_asked_for_by_a_name(api: SpokenApi, browse: Browse) -> None:
    page = (await browse("/sign-in?code=local.abc")).text
    assert 'name="code" value="local.abc"' in page and 'name="password"' not in page and 'name="next" value="/"' in page
    assert not api.asked, "nothing is asked before the person, or the page's script, sends the form"
    api.answers["/v1/auth/ways"] = ok({"oidc": True})
    assert 'href="/v1/auth/oidc/start?next=/review"' in (await browse("/sign-in?next=/review")).text
    api.answers["/v1/auth/ways"] = (503, problem("unavailable", "away"))
    assert "oidc" not in (await browse("/sign-in")).text
    taken = (await browse("/sign-in?failed=user_exists")).text
    assert 'name="next" value="/v1/auth/oidc/start?link=true"' in taken, "who signs in now goes on to link"


@given(st.lists(st.lists(texts, min_size=1, max_size=4), max_size=6))
def test_a_page_is_never_much_longer_than_it_may_be_and_the_newest_is_cut_last(turns: list[list[str]]) -> None:
    segments = ([{"kind": "text", "text": text} for text in several] for several in turns)
    view = [
        ConversationTurn(turn_id=str(number), conversation_id="c", status="completed", segments=each)
        for number, each in enumerate(segments)
    ]
    most = allot_characters(view)
    lengths = [
        sum(min(len(text), most.get(turn.turn_id, len(text))) for text in several)
        for turn, several in zip(view, turns, strict=True)
    ]
    assert sum(lengths) <= PAGE_CHARACTERS + 1_000 * sum(map(len, turns))
    if turns and sum(map(len, turns[0])) <= PAGE_CHARACTERS:
        assert "0" not in most
    for turn in view:
        assert TurnView(turn, max_characters=most.get(turn.turn_id)).separate_answer == ""


def edge(source: str, target: str, label: str = "") -> dict[str, Any]:
    return {"source": source, "target": target, "form": "goto", "label": label}


@pytest.fixture
def api_turn(api: SpokenApi) -> dict[str, Any]:
    turn: dict[str, Any] = {
        "turn_id": TURN, "conversation_id": CONVERSATION, "status": "awaiting_approval", "agent": "desk",
        "topology": "loop", "answer": None, "nodes": ["model", "tool", "model"],
        "waiting_for": {"kind": "approval", "ids": [APPROVAL], "since": "2026-01-01T10:00:00Z"},
        "usage": {"input_tokens": 1200, "output_tokens": 34, "cost_usd": 0.0123},
        "links": {"temporal": "http://temporal/w"},
    }  # fmt: skip
    manifest = {
        "name": "loop",
        "nodes": [{"id": "model", "purpose": "Ask"}, {"id": "tool", "purpose": "Do"}],
        "edges": [edge("START", "model"), edge("model", "tool", "tools"), edge("tool", "model"), edge("model", "END")],
    }
    said = [
        {"id": "m1", "role": "user", "content": "of another turn", "turn_id": "other"},
        {"id": "m2", "role": "user", "content": HOSTILE, "turn_id": TURN},
    ]
    story = [
        {"kind": "thinking", "call_id": "m1", "state": "completed"},
        {"kind": "tool", "call_id": "t1", "state": "awaiting_approval", "tool": "pay", "arguments": {"to": HOSTILE},
         "failure": HOSTILE, "known": {"code": "timed_out", "message": HOSTILE}},
        {"kind": "text", "call_id": "m2", "state": "partial", "text": "x" * 9_000},
    ]  # fmt: skip
    at = "2026-01-01T10:00:0{}Z".format
    done = {"kind": "model", "state": "done", "attempts": 2, "errors": 1, "cost_usd": 0.0042}
    calls = [
        {"call_id": "m1", "name": "fast", "started_at": at(0), "settled_at": at(1), "seconds": 1.5, **done},
        {"call_id": "t1.0", "kind": "tool", "name": HOSTILE, "state": "planned", "approval_id": APPROVAL},
    ]
    approval = {"id": APPROVAL, "status": "pending", "tool": "pay"}
    api.answers |= {
        f"/v1/turns/{TURN}": ok(turn), f"/v1/turns/{TURN}/segments": ok({"items": story}),
        f"/v1/turns/{TURN}/calls": ok({"items": calls}),
        f"/v1/conversations/{CONVERSATION}/messages": ok({"items": said, "next": None}),
        "/v1/approvals": ok({"items": [approval]}), "/v1/topologies/loop": ok(manifest),
    }  # fmt: skip
    return turn


async def test_a_turn_has_its_own_words_path_and_bars(api_turn: dict[str, Any], browse: Browse) -> None:
    page = (await browse(TURN_PATH)).text
    assert "7,800" in page and page.count("x" * 1_000) == 1
    assert page.count('<svg class="bar') == 1, "of the call that has begun"
    assert page.count('class="line taken"') == 4
    assert "of another turn" not in page


async def test_what_users_and_models_wrote_is_inert(api_turn: dict[str, Any], browse: Browse) -> None:
    api_turn["answer"], api_turn["error"] = HOSTILE, {"code": HOSTILE, "message": HOSTILE}
    api_turn["nodes"] = [HOSTILE]
    page = (await browse(TURN_PATH)).text
    assert page.count("&lt;script&gt;window.hit") == 9
    assert "<script>window" not in page and "\u202e" not in page


async def test_an_open_turn_is_looked_at_again_until_it_has_ended(api_turn: dict[str, Any], browse: Browse) -> None:
    page = (await browse(TURN_PATH)).text
    again = re.search(rf'hx-get="({TURN_PATH}\?mark=\w+)" hx-trigger="every 2s" hx-swap="outerMorph"', page)
    assert again is not None and '<noscript><meta http-equiv="refresh"' in page
    live = {"HX-Request": "true"}
    assert (await browse(again[1], headers=live)).status_code == 204
    api_turn["status"], api_turn["waiting_for"] = "completed", None
    ended = await browse(again[1], headers=live)
    assert ended.status_code == 200 and "<html" not in ended.text and "hx-get" not in ended.text
    assert "refresh" not in (await browse(TURN_PATH)).text


async def test_a_turn_without_topology_or_conversation(
    api: SpokenApi, api_turn: dict[str, Any], browse: Browse
) -> None:
    del api.answers["/v1/topologies/loop"], api.answers[f"/v1/conversations/{CONVERSATION}/messages"]
    answer = await browse(TURN_PATH)
    assert answer.status_code == 200 and "<li><code>model</code>" in answer.text
    assert 'id="picture"' not in answer.text and "of another turn" not in answer.text
    assert (await browse("/turns/nobodys")).status_code == 404
