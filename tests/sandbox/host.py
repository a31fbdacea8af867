"""What a block must not reach of the machine that it runs on, with a secret in every place."""

import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import JsonValue

NAME = "PERDURE_CANARY"


@dataclass(frozen=True, slots=True)
class Host:
    """A variable, a file, a folder and a port."""

    secret: str
    file: Path
    listener: socket.socket

    @property
    def given(self) -> dict[str, JsonValue]:
        port = self.listener.getsockname()[1]
        return {"name": NAME, "file": str(self.file), "folder": str(self.file.parent), "port": port}

    def assert_untouched(self) -> None:
        """Nothing was changed, nobody called."""
        assert [path.name for path in self.file.parent.iterdir()] == [self.file.name]
        assert self.file.read_text() == self.secret
        with pytest.raises(BlockingIOError):
            self.listener.accept()


@contextmanager
def host(folder: Path) -> Iterator[Host]:
    """The secret is in the environment from here on, so workers that start later could inherit it."""
    secret = secrets.token_hex(16)
    file = folder / "canary"
    file.write_text(secret)
    file.chmod(0o644)
    with pytest.MonkeyPatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as listener:
        patch.setenv(NAME, secret)
        listener.setblocking(False)
        yield Host(secret, file, listener)
