"""The embedded Valkey: every write in its append-only file, its password in a file that only its owner reads."""

import re
import signal
from pathlib import Path

from local.child import ChildSpec
from local.home import Home, write_private
from local.ports import HOST
from local.probes import valkey_answers, valkey_lives

STOP_RANK = 3
# Valkey marks warnings by '#' after the time: "1234:M 21 Nov 2026 10:12:00.000 # Out Of Memory ..."
_SHOWN = re.compile(r"^\d+:\w .*? # ")


def url(port: int, password: str) -> str:
    """The connection string of the server on this port."""
    return f"redis://:{password}@{HOST}:{port}/0"


def child_spec(home: Home, program: Path, port: int, password: str) -> ChildSpec:
    """The server as a child; writes its configuration file, password included, with mode 0600."""
    home.valkey.mkdir(mode=0o700, exist_ok=True)
    configuration = home.valkey / "valkey.conf"
    settings = (
        f"bind {HOST}",
        f"port {port}",
        "dir ./",  # the child's working folder: a path would have to be quoted
        "appendonly yes",
        'save ""',
        f"requirepass {password}",
        "daemonize no",
        "loglevel notice",
    )
    write_private(configuration, "\n".join(settings) + "\n")

    async def ready(_pid: int) -> bool:
        return await valkey_answers(HOST, port, password)

    async def lives(_pid: int) -> bool:
        return await valkey_lives(HOST, port, password)

    return ChildSpec(
        role="valkey",
        command=(str(program), str(configuration)),
        environ={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC"},
        cwd=home.valkey,
        log=home.log("valkey"),
        ready=ready,
        lives=lives,
        stop_steps=((signal.SIGTERM, 10.0),),
        stop_rank=STOP_RANK,
        death_signal=signal.SIGTERM,
        shows=_SHOWN,
        detail=f"{HOST}:{port}",
    )
