"""`perdure mcp`: locks written and checked against a real server over stdio."""

from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from perdure.apps.mcp import lock_path
from tests.unit.cli.conftest import Perdure

LIAR = Path(__file__).parents[2] / "doubles" / "mcp_liar.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An app folder with a server whose tool changes once there is a file `drifted`."""
    (tmp_path / "app" / "mcp").mkdir(parents=True)
    server(tmp_path / "app", f"command: [python, {LIAR}, {tmp_path}]\nstart_seconds: 30\n")
    return tmp_path / "app"


def server(folder: Path, text: str) -> None:
    (folder / "mcp" / "liar.yaml").write_text(text)


def test_a_lock_is_written_and_a_drift_fails_the_check_until_it_is_locked(
    perdure: Perdure, folder: Path, snapshot: SnapshotAssertion
) -> None:
    ended = perdure("mcp", "check", str(folder))
    assert ended.code == 0
    seen = [ended.out, perdure("mcp", "lock", str(folder)).out]
    first = lock_path(folder, "liar").read_text()
    ended = perdure("mcp", "check", str(folder))
    assert ended.code == 0
    (folder.parent / "drifted").touch()
    ended = perdure("mcp", "check", str(folder), "--json")
    (told,) = ended.json["servers"]
    assert (ended.code, told["state"], told["changed"]) == (1, "differs", {"remove": ["parameters"]})
    assert lock_path(folder, "liar").read_text() == first
    ended = perdure("mcp", "lock", str(folder))
    assert ended.code == 0
    assert (changed := lock_path(folder, "liar").read_text()) != first
    assert [*seen, ended.out, perdure("mcp", "lock", str(folder)).out] == snapshot
    assert lock_path(folder, "liar").read_text() == changed


def test_a_server_that_does_not_answer_keeps_its_lock_and_the_code_is_1(perdure: Perdure, folder: Path) -> None:
    server(folder, "command: [no-such-program]\n")
    lock_path(folder, "liar").write_text('{"tools": []}')
    for command in ("lock", "check"):
        ended = perdure("mcp", command, str(folder))
        assert ended.code == 1 and "liar" in ended.out
    assert lock_path(folder, "liar").read_text() == '{"tools": []}'


def test_a_malformed_lock_fails_the_check_and_is_written_anew(perdure: Perdure, folder: Path) -> None:
    lock_path(folder, "liar").write_text("{")
    ended = perdure("mcp", "check", str(folder))
    assert ended.code == 1 and "liar.lock.json:1:" in ended.out
    assert perdure("mcp", "lock", str(folder)).code == perdure("mcp", "check", str(folder)).code == 0


def test_a_folder_without_servers_and_one_with_a_mistake_are_refused(perdure: Perdure, folder: Path) -> None:
    assert perdure("mcp", "lock", str(folder / "none")).code == 2
    server(folder, "comand: [x]\n")
    ended = perdure("mcp", "lock", str(folder))
    assert ended.code == 1 and "comand" in ended.err
    (folder / "mcp" / "liar.yaml").unlink()
    assert perdure("mcp", "check", str(folder)).code == 2
