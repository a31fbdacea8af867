"""Files from the command line: uploaded before a message, listed, fetched."""

from pathlib import Path

import pytest

from tests.unit.apps.api_double import ApiDouble, Reply, event, said, streamed
from tests.unit.cli.conftest import Perdure
from tests.unit.cli.test_commands import CONVERSATION, STARTED, TURN

FILE = {"id": "f-1", "conversation_id": "c-1", "name": "sales.csv", "media_type": "text/csv", "size_bytes": 18}
PICTURES = {"png": "/v1/files/f-2", "specification": "/v1/files/f-3"}
DRAWN = said({**TURN, "output": {"pictures": PICTURES}})
ASKS = streamed(
    event("clarification.requested", "1.0.0-0", turn_id="t-1", question="Which\x1b column?", request_id="q-1"),
    event("done", "2.0.0-0", status="completed", tokens_used=7, cost_usd=0, duration_ms=10),
    event("workflow_complete", status="completed"),
)


@pytest.fixture
def sales(tmp_path: Path) -> Path:
    path = tmp_path / "sales.csv"
    path.write_bytes(b"region,sales\nN,30\n")
    return path


def test_a_file_is_uploaded_before_what_is_said_and_pictures_come_with_their_commands(
    perdure: Perdure, stack: ApiDouble, sales: Path
) -> None:
    stack.will(CONVERSATION, said(FILE, 201), STARTED, ASKS, DRAWN)
    ended = perdure("chat", "charts", "--file", str(sales), "-m", "Plot sales by region")
    assert ended.code == 0, ended.err
    uploaded = stack.asked[1]
    assert (uploaded.path, uploaded.query) == ("/v1/conversations/c-1/files", {"name": ["sales.csv"]})
    assert (uploaded.headers["content-type"], uploaded.body) == ("text/csv", sales.read_bytes())
    assert "files get f-2 chart.png" in ended.out and "files get f-3 chart.vl.json" in ended.out
    assert "turns answer t-1 TEXT" in ended.out and "\x1b" not in ended.out


def test_a_file_is_uploaded_listed_and_fetched(perdure: Perdure, stack: ApiDouble, sales: Path, tmp_path: Path) -> None:
    stack.will(said(FILE, 201), said({"items": [FILE], "next": None}), Reply(200, b"\x89PNG"))
    assert perdure("files", "upload", "c-1", str(sales)).code == 0
    assert "f-1" in perdure("files", "list", "c-1").out
    kept = tmp_path / "chart.png"
    assert perdure("files", "get", "f-2", str(kept)).code == 0 and kept.read_bytes() == b"\x89PNG"


def test_a_place_that_cannot_be_written_is_told(perdure: Perdure, stack: ApiDouble, tmp_path: Path) -> None:
    stack.will(Reply(200, b"x"))
    ended = perdure("files", "get", "f-2", str(tmp_path / "no" / "such" / "folder"))
    assert ended.code == 1 and "Traceback" not in ended.err
