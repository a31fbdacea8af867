"""The page of a turn, with a scripted API."""

import re
from typing import Any

import pytest

from tests.unit.pages.conftest import Browse, SpokenApi, ok

TURN, CONVERSATION, APPROVAL = (f"0192-{letter}" for letter in "tca")
PATH = f"/turns/{TURN}"
HOSTILE = "<script>window.hit = 1</script>\u202egnp"


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
        {"kind": "tool", "call_id": "t1", "state": "awaiting_approval", "tool": "pay", "arguments": {"to": HOSTILE}},
        {"kind": "text", "call_id": "m2", "state": "partial", "text": "x" * 9_000},
    ]
    at = "2026-01-01T10:00:0{}Z".format
    done = {"kind": "model", "state": "done", "attempts": 2, "errors": 1, "cost_usd": 0.0042}
    calls = [
        {"call_id": "m1", "name": "fast", "started_at": at(0), "settled_at": at(1), "seconds": 1.5, **done},
        {"call_id": "t1.0", "kind": "tool", "name": HOSTILE, "state": "planned", "approval_id": APPROVAL},
    ]
    approval = {"id": APPROVAL, "status": "pending", "tool": "pay"}
    api.answers |= {
        f"/v1/turns/{TURN}": ok(turn),
        f"/v1/turns/{TURN}/segments": ok({"items": story}),
        f"/v1/turns/{TURN}/calls": ok({"items": calls}),
        f"/v1/conversations/{CONVERSATION}/messages": ok({"items": said, "next": None}),
        "/v1/approvals": ok({"items": [approval]}),
        "/v1/topologies/loop": ok(manifest),
    }
    return turn


async def test_a_turn_has_its_own_words_path_and_bars(api_turn: dict[str, Any], browse: Browse) -> None:
    page = (await browse(PATH)).text
    assert "7,800" in page and page.count("x" * 1_000) == 1
    assert page.count('<svg class="bar') == 1, "of the call that has begun"
    assert page.count('class="line taken"') == 4
    assert "of another turn" not in page


async def test_what_users_and_models_wrote_is_inert(api_turn: dict[str, Any], browse: Browse) -> None:
    api_turn["answer"], api_turn["error"] = HOSTILE, {"code": HOSTILE, "message": HOSTILE}
    api_turn["nodes"] = [HOSTILE]
    page = (await browse(PATH)).text
    assert page.count("&lt;script&gt;window.hit") == 7
    assert "<script>window" not in page and "\u202e" not in page


async def test_an_open_turn_is_looked_at_again_until_it_has_ended(api_turn: dict[str, Any], browse: Browse) -> None:
    page = (await browse(PATH)).text
    again = re.search(rf'hx-get="({PATH}\?mark=\w+)" hx-trigger="every 2s" hx-swap="outerMorph"', page)
    assert again is not None and '<noscript><meta http-equiv="refresh"' in page
    live = {"HX-Request": "true"}
    assert (await browse(again[1], headers=live)).status_code == 204
    api_turn["status"], api_turn["waiting_for"] = "completed", None
    ended = await browse(again[1], headers=live)
    assert ended.status_code == 200 and "<html" not in ended.text and "hx-get" not in ended.text
    assert "refresh" not in (await browse(PATH)).text


async def test_a_turn_without_topology_or_conversation(
    api: SpokenApi, api_turn: dict[str, Any], browse: Browse
) -> None:
    del api.answers["/v1/topologies/loop"], api.answers[f"/v1/conversations/{CONVERSATION}/messages"]
    answer = await browse(PATH)
    assert answer.status_code == 200 and "<li><code>model</code>" in answer.text
    assert 'id="picture"' not in answer.text and "of another turn" not in answer.text
    assert (await browse("/turns/nobodys")).status_code == 404
