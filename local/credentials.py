"""The passwords of the embedded parts: made once at random, kept in `secrets.json`, never on a command line.

A command line is readable by every user of the machine (`ps`), so passwords travel in files of mode 0600 and in the
environment of the processes that need them.
"""

import json
import secrets
from dataclasses import asdict, dataclass, fields

from local.errors import StackError
from local.home import Home, write_private


@dataclass(frozen=True, slots=True)
class Credentials:
    """One password for each role that logs in to an embedded part."""

    bootstrap: str
    """The cluster's superuser: only the prepare step uses it."""
    owner: str
    """`perdure_owner`, which migrates."""
    app: str
    """`perdure_app`, which runs, under row-level security."""
    relay: str
    """`perdure_relay`, which claims outbox rows."""
    valkey: str

    def __repr__(self) -> str:
        return "Credentials(hidden)"


def load_credentials(home: Home) -> Credentials:
    """The kept passwords, or fresh ones for a fresh folder.

    Raises: StackError when the file is unreadable, or gone while the cluster that it opens is there.
    """
    path = home.secrets_file
    kept: dict[str, str] = {}
    if path.exists():
        try:
            kept = dict(json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise StackError(f"{path} cannot be read ({error}); put its last good copy back") from error
    elif (home.postgres / "PG_VERSION").exists():
        raise StackError(
            f"{path} is gone but its database is in {home.postgres}; put the file back, or move that folder away"
        )
    names = [field.name for field in fields(Credentials)]
    # No leading dash: a value that looks like an option is a trap for whoever types it by hand.
    chosen = Credentials(**{name: kept.get(name) or "k" + secrets.token_urlsafe(24) for name in names})
    if asdict(chosen) != kept:
        write_private(path, json.dumps(asdict(chosen), indent=2) + "\n")
    return chosen
