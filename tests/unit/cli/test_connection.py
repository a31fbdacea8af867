"""Which Perdure, and as whom: a local token goes to the local stack and nowhere else."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.cli.connection import command
from perdure.local.config import ROOT
from perdure.local.processes import ProcessRegistry
from tests.unit.apps.api_double import reply
from tests.unit.cli.conftest import Perdure

USERS = {"turns": "requester", "approvals": "reviewer", "effects": "reviewer", "users": "admin"}
EMPTY = reply({"items": [], "next": None})


@pytest.mark.parametrize(("line", "user"), [(f"{group} list", user) for group, user in USERS.items()])
def test_a_command_uses_its_local_user(cli: Perdure, monkeypatch: pytest.MonkeyPatch, line: str, user: str) -> None:
    assert cli(line, EMPTY).code == cli(f"{line} --as reviewer", EMPTY).code == 0
    monkeypatch.setenv("PERDURE_TOKEN", "mine")  # a token of one's own comes first
    assert cli(line, EMPTY).code == cli(f"{line} --as admin", EMPTY).code == 0
    tokens = [asked.headers["authorization"].removeprefix("Bearer ") for asked in cli.asked]
    assert tokens == [f"t-{user}", "t-reviewer", "mine", "t-admin"]


def test_a_local_token_is_never_sent_elsewhere(perdure: Perdure, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "run.json").write_text(json.dumps({"api": "http://127.0.0.1:1", "tokens": {"requester": "secret"}}))
    monkeypatch.setenv("PERDURE_URL", perdure.url + "/")
    for line in ("turns list", "turns list --as requester"):
        ended = perdure(line)
        assert ended.code == 2 and "PERDURE_TOKEN" in ended.err and perdure.asked == []
    monkeypatch.setenv("PERDURE_TOKEN", "mine")
    assert perdure("turns list", EMPTY).code == 0
    (home / "run.json").unlink()
    assert perdure("turns list", EMPTY).code == 0, "the address needs no local stack"


def test_without_a_running_stack_its_folder_is_named(perdure: Perdure, home: Path) -> None:
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    killed = {"api": "http://127.0.0.1:1", "tokens": {"requester": "t"}, "supervisor": int(gone.stdout)}
    for run_file in (None, "", "{", "[]", "null", json.dumps(killed)):
        if run_file is not None:
            (home / "run.json").write_text(run_file)
        for line in ("turns list", "status", "chat general -m hi"):
            ended = perdure(line)
            assert ended.code == 1 and str(home) in ended.err, (run_file, line)


def test_processes_left_by_a_killed_supervisor_are_named_with_their_remedy(perdure: Perdure, home: Path) -> None:
    script = (
        "import os, signal, subprocess, sys\nfrom pathlib import Path\n"
        "from perdure.local.processes import ProcessRegistry\n"
        "left = subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL)\n"
        "ProcessRegistry(Path(sys.argv[1])).add('worker-llm', left.pid, signal.SIGKILL)\nprint(left.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    command = [sys.executable, "-c", script, str(home / "children.json")]
    supervisor = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert supervisor.returncode == -signal.SIGKILL
    left = int(supervisor.stdout)
    try:
        for line in ("status", "turns list"):
            ended = perdure(line)
            assert ended.code == 1 and "worker-llm" in ended.err and str(left) in ended.err
        told = perdure("status --json")
        assert (told.code, told.json["well"]) == (1, False)
        parts = [(part["name"], part["well"], part["pid"]) for part in told.json["parts"]]
        assert parts == [("worker-llm", False, left)]
    finally:
        os.kill(left, signal.SIGKILL)


def test_a_starting_stack_is_reported_as_such(perdure: Perdure, home: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        ProcessRegistry(home / "children.json").add("postgres", child.pid, signal.SIGKILL)
        ended = perdure("status")
        child.kill()
    assert ended.code == 1 and str(os.getpid()) in ended.err


@pytest.mark.parametrize(("first", "at_home"), [
    (ROOT / "bin", False), (Path("/usr/bin"), False), (Path(sys.executable).parent, True),
])  # fmt: skip
def test_a_printed_command_works_in_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: Path, at_home: bool
) -> None:
    """`make` and a virtual environment put the interpreter's own folder on PATH, where the next terminal has none."""
    for name in ("PERDURE_HOME", "PERDURE_URL"):
        monkeypatch.delenv(name, raising=False)
    path = "/usr/bin:/bin"
    monkeypatch.setenv("PATH", f"{first}:{path}")
    monkeypatch.chdir(ROOT if at_home else tmp_path)
    shown = command("turns", "--help")
    env = {"PATH": f"{first}:{path}" if first == ROOT / "bin" else path}
    told = subprocess.run(["/bin/sh", "-c", shown], env=env, capture_output=True, text=True)
    assert told.returncode == 0 and "watch" in told.stdout, (shown, told.stderr)


def test_a_command_of_an_installed_package_names_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_HOME", raising=False)
    monkeypatch.setattr("perdure.cli.connection.ROOT", tmp_path / "site-packages")
    monkeypatch.setattr("perdure.local.config.BASE", tmp_path / "here")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("PERDURE_URL", "http://u:hush@h")
    home, url, program, *_ = command("status").split()
    assert url.startswith("PERDURE_URL=") and "hush" not in url
    assert home == f"PERDURE_HOME={tmp_path / 'here' / '.perdure'}"
    assert Path(program).is_absolute()


def test_an_unreachable_address_starts_nothing(perdure: Perdure, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_PUBLIC_URL", raising=False)
    for host, named in (("0.0.0.0", "PERDURE_PUBLIC_URL"), ("::", "PERDURE_PUBLIC_URL"), ("192.0.2.7", "127.0.0.1")):
        monkeypatch.setenv("PERDURE_HOST", host)
        ended = perdure("up")
        assert ended.code != 0 and f"PERDURE_HOST={host}" in ended.err and named in ended.err
        assert "Traceback" not in ended.err and not list(home.iterdir()), "nothing was made in the data folder"


@pytest.mark.parametrize(("code", "line", "name", "value"), [
    *((1, "up", name, "perhaps") for name in ("PERDURE_EXAMPLES", "LOG_LEVEL", "RATE_LIMIT_PER_MINUTE")),
    *((1, "up", name, "foo") for name in ("PERDURE_PUBLIC_URL", "PERDURE_PROXIES", "PERDURE_OIDC_NEWCOMERS")),
    *((1, "up", "PERDURE_PUBLIC_URL", f"http://{rest}") for rest in ("u:hush@h", "a/b", "a?b", "a b", "a:x", "[::1")),
    *((1, "up", name, "hush") for name in ("DATABASE_URL", "REDIS_URL", "PERDURE_OPERATOR_TOKEN", "JWT_SECRET")),
    (1, "up", "DATABASE_URL", "postgresql://u:hush@h:port/d"),
    *(
        (1, "up", name, "http://u:hush@h/x")
        for name in ("PERDURE_EGRESS_PROXY", "PERDURE_EGRESS_HOSTS", "PERDURE_ALLOWED_HOSTS", "PERDURE_PROXIES")
    ),
    (1, "status", "PERDURE_TENANT", "\udcff"),
    *((2, line, "PERDURE_TOKEN", token) for line in ("turns list", "status") for token in ("hüsh", "hush\nhush")),
    *(
        (2, "link", "PERDURE_URL", url)
        for url in ("foo", "http://[::1", "http://x:99999", "http://a\nb", "ftp://u:hush@x", "http://u:hush@x")
    ),
])  # fmt: skip
def test_a_wrong_setting_is_one_line_that_names_it(
    perdure: Perdure, home: Path, monkeypatch: pytest.MonkeyPatch, code: int, line: str, name: str, value: str
) -> None:
    monkeypatch.setenv("PERDURE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv(name, value)
    ended = perdure(line)
    assert (ended.code, ended.out, len(ended.err.splitlines())) == (code, "", 1)
    assert name in ended.err and "hush" not in ended.err and not list(home.iterdir())


WHILE_IT_IMPORTS = """
import builtins, signal, sys
there = builtins.__import__
def importing(name, *given, **named):
    if name == "perdure.cli.app":
        signal.raise_signal(signal.SIGINT)
    return there(name, *given, **named)
builtins.__import__ = importing
import perdure.__main__
"""


def test_an_interrupt_during_imports_ends_silently() -> None:
    ended = subprocess.run([sys.executable, "-c", WHILE_IT_IMPORTS], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-2, "", "")
