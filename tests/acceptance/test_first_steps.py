"""The documented first steps, typed: README code and a new app's README; and `make demo`, once, as a process."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perdure.apps.scaffold import scaffold
from perdure.local.ports import free_port
from tests.acceptance.command import Command, shell_output
from tests.acceptance.running import ROOT, START_SECONDS, running
from tests.eventually import wait_until

STEPS = ("tool.awaiting_approval", "tool.approved", "tool.result", "done")
"""Events of a turn with one call that a person allows."""
APPROVAL = re.compile(r"approvals approve (\S+)")


def fenced(readme: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", readme.read_text(), re.MULTILINE | re.DOTALL)


def blocks(readme: Path) -> list[list[str]]:
    """The commands of each fenced block; a continued line is one command."""
    return [block.replace("\\\n", " ").splitlines() for block in fenced(readme, "")]


def test_the_readmes_tool_agent_and_client_work_together(tmp_path: Path) -> None:
    app = tmp_path / "desk"
    scaffold(app)
    tool, client = fenced(ROOT / "README.md", "python")
    (agent,) = fenced(ROOT / "README.md", "yaml")
    for block in (tool, agent):  # each names its file in the first line; it takes the place of what `init` wrote
        path = block.splitlines()[0].removeprefix("# ")
        assert (app / path).is_file(), f"`perdure init` writes no {path}"
        (app / path).write_text(block)
    with running(tmp_path / "home", "--app", str(app)) as own:
        environ = {**os.environ, "API": own.api, "TOKEN": own.token("requester"), "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(
            [sys.executable, "-c", client], cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True
        ) as asking:
            try:
                perdure = Command(own.home)
                waiting = perdure.pending("Open a ticket: the printer burns")
                assert (waiting["tool"], waiting["args"]) == ("open_ticket", {"title": "the printer burns"})
                approved = perdure("approvals", "approve", waiting["id"], "--yes")
                assert approved.code == 0, approved.err
                said, _ = asking.communicate(timeout=60)
            finally:
                asking.kill()
    assert asking.returncode == 0
    *kinds, answer = said.splitlines()
    assert answer == "Ticket 1 is open: the printer burns."
    assert [kind for kind in kinds if kind in STEPS] == list(STEPS)


@contextmanager
def terminal(line: str, folder: Path, log: Path, environ: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A line typed into a fresh shell, whose program is ended with the block."""
    with log.open("wb") as output:
        shell = subprocess.Popen(["/bin/sh", "-c", line], cwd=folder, env=environ, stdout=output, stderr=output)
    try:
        yield shell
    finally:
        shell.terminate()  # by now it is the program itself: every line before was an `exec`
        try:
            shell.wait(60)
        except subprocess.TimeoutExpired:
            shell.kill()
            shell.wait()


def test_a_new_apps_readme_works_line_by_line_in_fresh_shells(tmp_path: Path) -> None:
    app = tmp_path / "my app"
    scaffold(app)
    (export, up), (chat, listing, approve, find) = (
        [line.partition("#")[0].strip() for line in block] for block in blocks(app / "README.md")
    )
    assert up == "perdure up --app ."
    kept = {name: os.environ[name] for name in ("HOME", "XDG_CACHE_HOME", "LANG") if name in os.environ}
    environ = {**kept, "PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONUNBUFFERED": "1"}
    environ |= {"PERDURE_HOME": str(tmp_path / "home"), "PERDURE_PORT": str(free_port())}

    def typed(line: str) -> str:
        return shell_output(f"{export}; {line}", cwd=app, env=environ)

    def log_once(log: Path, pattern: str, seconds: float) -> str:
        wait_until(lambda: re.search(pattern, log.read_text()), seconds, f"never {pattern}")
        return log.read_text()

    up_log, chat_log = tmp_path / "up.log", tmp_path / "chat.log"
    with terminal(f"{export}; exec {up}", app, up_log, environ):
        log_once(up_log, "admin token", START_SECONDS)
        run = json.loads((tmp_path / "home" / "run.json").read_text())
        assert [*run["companions"]] == ["desk-service"] and run["left_out"] == []
        with Command(tmp_path / "home").client() as client:
            assert [agent.id for agent in client.agents.list().items] == ["desk"], "the app asked for, and no example"
        with terminal(f"{export}; exec {chat}", app, chat_log, environ) as asking:
            (approval_id,) = APPROVAL.findall(log_once(chat_log, rf"{APPROVAL.pattern}\s", 60))
            assert approval_id in typed(listing)
            typed(approve.replace(" ID", f" {approval_id}"))
            assert asking.wait(60) == 0
        assert "Ticket 1 is open: the printer burns." in chat_log.read_text()
        assert "1: the printer burns" in typed(find)


@pytest.mark.timeout(330)
def test_the_demo_proves_each_of_its_claims_and_leaves_nothing_behind(tmp_path: Path) -> None:
    foreign = {"PERDURE_HOME": str(tmp_path / "untouched"), "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"}
    before = set(Path(tempfile.gettempdir()).glob("perdure-demo-*"))
    command, environ = [sys.executable, "-m", "perdure.cli.demo"], {**os.environ, **foreign}
    ended = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    output = ended.stdout
    assert ended.returncode == 0, output + ended.stderr
    assert ended.stderr == ""
    assert "FAILED" not in output and output.count("  held  ") >= 15
    kills = re.findall(r"kill -9 .*", output)
    assert len(kills) == 4
    pids = re.findall(r"\d+(?= \(worker)", " ".join(kills))
    assert len(pids) == len(set(pids)) == 7
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    for fact in (
        r"refunds .*1042 .*: 1\n", r"notes .*1042 .*: 1\n", r": outcome_unknown",
        r"m1 \w+ 2x, \w+ 1x, m2 \w+ 1x, \w+ 1x", r"1042 .* 74\.50 EUR", r'\| +"order": "1042"',
        r"/namespaces/default/workflows/turn:",
    ):  # fmt: skip
        assert re.search(fact, output), fact
    assert not (tmp_path / "untouched").exists()
    assert set(Path(tempfile.gettempdir()).glob("perdure-demo-*")) <= before
