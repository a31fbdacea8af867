"""The command line run inside the test process, against a small real server or none at all."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perdure.__main__ import run
from tests.unit.apps.api_double import ApiDouble


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its output, read."""
        return json.loads(self.out)


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
        return Ended(code, said.out, said.err)

    return command
