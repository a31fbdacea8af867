"""A sandbox in its jail, as in a worker process. Without a jail these tests fail with advice."""

import os
import secrets
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from pydantic import JsonValue

from perdure.activities.sandbox import Limits, SandboxConfig, open_sandbox
from perdure.activities.sandbox.pool import MontySandbox

LIMITS = Limits(wall_seconds=0.5)
NAME = "PERDURE_CANARY"


@dataclass(frozen=True, slots=True)
class Host:
    """Secrets that a block must not reach: a variable, a file, a folder, a port."""

    secret: str
    file: Path
    listener: socket.socket

    @property
    def given(self) -> dict[str, JsonValue]:
        port = self.listener.getsockname()[1]
        return {"name": NAME, "file": str(self.file), "folder": str(self.file.parent), "port": port}

    def assert_untouched(self) -> None:
        assert [path.name for path in self.file.parent.iterdir()] == [self.file.name]
        assert self.file.read_text() == self.secret
        with pytest.raises(BlockingIOError):
            self.listener.accept()


def reached_by(folder: Path, names: Sequence[str]) -> str:
    """A PATH with these programs alone."""
    for name in names:
        found = next(Path(each, name) for each in os.get_exec_path() if Path(each, name).exists())
        (folder / name).symlink_to(found)
    return str(folder)


def interpreters() -> list[psutil.Process]:
    found = []
    for each in psutil.Process().children():
        with suppress(psutil.Error):  # it ended meanwhile
            if "monty" in " ".join(each.cmdline()):
                found.append(each)
    return found


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """The secret is in the environment from here on, so workers that start later could inherit it."""
    secret = secrets.token_hex(16)
    file = tmp_path_factory.mktemp("host") / "canary"
    file.write_text(secret)
    file.chmod(0o644)
    with pytest.MonkeyPatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as listener:
        patch.setenv(NAME, secret)
        listener.setblocking(False)
        yield Host(secret, file, listener)


@pytest.fixture(scope="module")
async def sandbox(host: Host) -> AsyncIterator[MontySandbox]:
    """Two blocks at a time, half a second each."""
    opened = await open_sandbox(SandboxConfig(ceiling=LIMITS, max_running=2))
    assert opened.jailed
    yield opened
    await opened.close()
