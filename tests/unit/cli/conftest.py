"""The command line run inside the test process, against a small real server or none at all."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from perdure.__main__ import run
from perdure.local.config import ROOT
from tests.unit.apps.api_double import ApiDouble, Asked, Reply, said


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    folder: str
    """The data folder, which differs from run to run."""

    @property
    def seen(self) -> str:
        """What a user sees, without what differs between runs: folders, ports, ages, widths of columns."""
        text = f"exit code {self.code}\n{self.out}{self.err}".replace(f"PERDURE_HOME={self.folder} ", "")
        text = text.replace(self.folder, "FOLDER").replace(str(ROOT), "ROOT")
        text = re.sub(r"(ROOT/)?bin/perdure|/\S+/bin/perdure", "perdure", text)
        text = re.sub(r"\b\d+ d( \d+ h)?", "N d", re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", text))
        return re.sub(r"(?<=\S) {2,}", "  ", re.sub(r" +$", "", text, flags=re.MULTILINE))

    @property
    def json(self) -> Any:
        """Its output, read."""
        return json.loads(self.out)


def request(asked: Asked) -> str:
    """Who asked for what: the local user, method, path, query and body. A digest is cut to its first character."""
    sent = json.dumps(asked.body) if asked.body is not None else urlencode(asked.query, doseq=True)
    who = asked.headers.get("authorization", "nobody").removeprefix("Bearer t-")
    return re.sub(r"(\w)\1{63}", r"\1…", f"{who} {asked.method} {asked.path} {sent}".rstrip())


def refusal(status: int, code: str, details: dict[str, Any] | None = None, **headers: str) -> Reply:
    """A refusal of the API."""
    return said({"error": {"code": code, "message": "no", "details": details or {}}}, status, **headers)


Perdure = Callable[..., Ended]


@pytest.fixture
def api() -> Iterator[ApiDouble]:
    with ApiDouble() as double:
        yield double


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder, and no other word from the environment."""
    for name in ("PERDURE_URL", "PERDURE_TOKEN", "VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PERDURE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def stack(home: Path, api: ApiDouble) -> ApiDouble:
    """run.json points at the small server."""
    tokens = {name: f"t-{name}" for name in ("requester", "reviewer", "admin")}
    (home / "run.json").write_text(json.dumps({"api": api.url, "tokens": tokens, "pids": {}}))
    return api


@pytest.fixture
def perdure(home: Path, capsys: pytest.CaptureFixture[str]) -> Perdure:
    """Runs a command line."""

    def command(*words: str) -> Ended:
        capsys.readouterr()
        code = run(list(words))
        said = capsys.readouterr()
        return Ended(code, said.out, said.err, str(home))

    return command
