"""`perdure mcp`: locks written and checked against a real server over stdio."""

from pathlib import Path

import pytest

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


def test_a_lock_is_written_and_checked_and_a_drift_is_told_until_it_is_locked(perdure: Perdure, folder: Path) -> None:
    ended = perdure("mcp", "check", str(folder))
    assert (ended.code, ended.out) == (0, "liar: 1 tools, no lock; `perdure mcp lock` writes one\n")
    ended = perdure("mcp", "lock", str(folder))
    assert ended.code == 0
    assert ended.out == "liar: lock written, 1 tools: 1 added, 0 removed, 0 changed\n  added    remove\n"
    first = lock_path(folder, "liar").read_text()
    ended = perdure("mcp", "check", str(folder))
    assert (ended.code, ended.out) == (0, "liar: 1 tools, as its lock has them\n")
    (folder.parent / "drifted").touch()
    ended = perdure("mcp", "check", str(folder), "--json")
    (told,) = ended.json["servers"]
    assert (ended.code, told["state"], told["changed"]) == (1, "differs", {"remove": ["parameters"]})
    assert lock_path(folder, "liar").read_text() == first
    ended = perdure("mcp", "lock", str(folder))
    assert ended.code == 0 and "  changed  remove (parameters)" in ended.out
    assert lock_path(folder, "liar").read_text() != first
    assert perdure("mcp", "lock", str(folder)).out == "liar: 1 tools, as its lock has them\n"


def test_a_server_that_does_not_answer_keeps_its_lock_and_the_code_is_1(perdure: Perdure, folder: Path) -> None:
    server(folder, "command: [no-such-program]\n")
    lock_path(folder, "liar").write_text('{"tools": []}')
    for command in ("lock", "check"):
        ended = perdure("mcp", command, str(folder))
        assert ended.code == 1
        assert ended.out == "liar: failed\n  the server liar cannot be reached (FileNotFoundError)\n"
    assert lock_path(folder, "liar").read_text() == '{"tools": []}'


def test_a_malformed_lock_fails_the_check_and_is_written_anew(perdure: Perdure, folder: Path) -> None:
    lock_path(folder, "liar").write_text("{")
    ended = perdure("mcp", "check", str(folder))
    assert ended.code == 1 and "liar.lock.json:1: is not JSON here" in ended.out
    ended = perdure("mcp", "lock", str(folder))
    assert ended.code == 0 and "1 added" in ended.out


def test_a_folder_without_servers_and_one_with_a_mistake_are_refused(perdure: Perdure, folder: Path) -> None:
    assert perdure("mcp", "lock", str(folder / "none")).code == 2
    server(folder, "comand: [x]\n")
    ended = perdure("mcp", "lock", str(folder))
    assert ended.code == 1 and "did you mean 'command'?" in ended.err
    (folder / "mcp" / "liar.yaml").unlink()
    ended = perdure("mcp", "check", str(folder))
    assert ended.code == 2 and "names no MCP server" in ended.err
