"""The command line run inside the test process, against a small real server or none at all."""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from perdure.__main__ import run
from perdure.local.config import ROOT
from tests.unit.apps.api_double import ApiDouble, Asked, Reply, reply

LIAR = Path(__file__).parents[2] / "doubles" / "mcp_false_hints.py"
APPROVAL: dict[str, Any] = {
    "id": "a-1", "status": "pending", "tool": "refund",
    "effect": "keyed", "risk": "high", "agent": "refunds",
    "args": {"order": "1042", "reason": "\u202eevil\x1b[8m"},
    "schema": {
        "type": "object",
        "properties": {"order": {"type": "string", "minLength": 1, "description": "Its\nnumber."},
                       "reason": {"type": "string"}},
        "required": ["order"],
        "additionalProperties": False,
    },
    "messages_since": [{"at": "2020-11-21T10:01:00Z", "text": "Wait,\u202e not yet"}], "revision": 2,
    "digest": "d" * 64, "requested_by": "requester", "requested_at": "2020-11-21T10:00:00Z",
    "expires_at": "2999-01-01T00:00:00Z", "allowed_decisions": ["approve", "edit", "reject", "respond"],
    "history": [{"what": "approval.opened", "at": "2026-11-21T10:00:00Z", "by": "requester", "data": {}}],
    "links": {"temporal": "http://127.0.0.1:1/namespaces/default/workflows/turn:t"},
}  # fmt: skip
OPEN: dict[str, Any] = {
    **APPROVAL,
    "reviewer_role": "reviewer",
    "reviewers": ["rita", "tom", "una"],
    "quorum": 2,
    "votes": [
        {"by": "una", "for": "tom", "decision": "approve", "at": "2026-11-21T10:05:00Z", "comment": "looks\nright\x1b"}
    ],
    "assignee": "rita",
    "claimed_by": "rita",
    "claimed_until": "2999-01-01T00:00:00Z",
    "fallback": {"reviewer": "una", "at": "2999-01-01T00:00:00Z"},
    "on_timeout": "escalate",
    "history": [{"what": "approval.voted", "at": "2026-11-21T10:05:00Z", "by": "una", "data": {"seat": "tom", "n": 1}}],
}


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str
    folder: str
    """The data folder, which differs from run to run."""

    @property
    def seen(self) -> str:
        """The output that a user sees, without parts that differ between runs: folders, ports, ages, widths."""
        text = f"exit code {self.code}\n{self.out}{self.err}".replace(f"PERDURE_HOME={self.folder} ", "")
        text = text.replace(self.folder, "FOLDER").replace(str(ROOT), "ROOT")
        text = re.sub(r"\S+ \S+(?= \[info)", "TIME", text)
        text = re.sub(r"(ROOT/)?bin/perdure|/\S+/bin/perdure", "perdure", text)
        text = re.sub(r"\b\d+ d( \d+ h)?", "N d", re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", text))
        return re.sub(r"(?<=\S) {2,}", "  ", re.sub(r" +$", "", text, flags=re.MULTILINE))

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def request(asked: Asked) -> str:
    """A request's local user, method, path, query and body. A digest is cut to its first character."""
    sent = (
        json.dumps(asked.body, default=bytes.decode) if asked.body is not None else urlencode(asked.query, doseq=True)
    )
    who = asked.headers.get("authorization", "nobody").removeprefix("Bearer t-")
    return re.sub(r"(\w)\1{63}", r"\1…", f"{who} {asked.method} {asked.path} {sent}".rstrip())


def refusal(status: int, code: str, details: dict[str, Any] | None = None, **headers: str) -> Reply:
    return reply({"error": {"code": code, "message": "no", "details": details or {}}}, status, **headers)


class Perdure:
    """Runs command lines, each given whole or as words, together with what the API answers to it."""

    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str], api: ApiDouble) -> None:
        self.home, self.capsys = home, capsys
        self.url, self.asked, self.will = api.url, api.asked, api.will

    def __call__(self, *given: str | Reply) -> Ended:
        words = [each for each in given if isinstance(each, str)]
        self.will(*(each for each in given if isinstance(each, Reply)))
        self.capsys.readouterr()
        code = run(shlex.split(words[0]) if len(words) == 1 else words)
        said = self.capsys.readouterr()
        return Ended(code, said.out, said.err, str(self.home))


@pytest.fixture
def api() -> Iterator[ApiDouble]:
    with ApiDouble() as double:
        yield double


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PERDURE_URL", "PERDURE_TOKEN", "VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PERDURE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def perdure(home: Path, capsys: pytest.CaptureFixture[str], api: ApiDouble) -> Perdure:
    return Perdure(home, capsys, api)


@pytest.fixture
def cli(home: Path, perdure: Perdure) -> Perdure:
    """The same command; run.json points at a small server."""
    tokens = {name: f"t-{name}" for name in ("requester", "reviewer", "admin")}
    (home / "run.json").write_text(json.dumps({"api": perdure.url, "tokens": tokens, "pids": {}}))
    return perdure
