"""The settings of a receiver, from its environment. Each fault is one line that names the variable or the file."""

import json
import re
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from deploy.receivers.state import ReceiverState

_SECRET = re.compile(r"[\x21-\x7e]+")
"""The characters that a header can contain: visible ASCII."""


def required_values(environ: Mapping[str, str], *names: str) -> list[str]:
    """Returns the values of required variables.

    Raises: SystemExit that names all that are missing.
    """
    missing = [name for name in names if not environ.get(name)]
    if missing:
        raise SystemExit(f"{', '.join(missing)}: not set; see deploy/receivers/README.md")
    return [environ[name] for name in names]


def required_secrets(environ: Mapping[str, str], *names: str) -> list[str]:
    """Returns the values of required variables that are sent in headers or sign what is sent.

    Raises: SystemExit that names a variable that is missing or malformed.
    """
    values = required_values(environ, *names)
    for name, value in zip(names, values, strict=True):
        if not _SECRET.fullmatch(value):
            raise SystemExit(f"{name} contains a character other than visible ASCII; set it to the secret alone")
    return values


def port_of(environ: Mapping[str, str], name: str, default: int) -> int:
    """Returns a port.

    Raises: SystemExit if the value is not a port number.
    """
    text = environ.get(name) or str(default)
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:6]) < 65_536):
        raise SystemExit(f"{name} is {text!r}; it must be a port number")
    return int(text)


def read_token_file(environ: Mapping[str, str], name: str) -> dict[str, str]:
    """Returns the tokens by user in the file that the variable names.

    Raises: SystemExit if others can read the file, or if it is damaged.
    """
    (file_name,) = required_values(environ, name)
    path = Path(file_name)
    try:
        if path.stat().st_mode & 0o077:
            raise SystemExit(f"{path} contains tokens; run `chmod 600` on it")
        tokens_by_user = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SystemExit(f"{path} cannot be read: {error}; correct the file, or {name}") from None
    tokens = tokens_by_user.values() if isinstance(tokens_by_user, dict) else [None]
    if not all(isinstance(each, str) and _SECRET.fullmatch(each) for each in tokens):
        raise SystemExit(f"{path} is not a JSON object of tokens by user; correct it, as in deploy/receivers/README.md")
    return dict(tokens_by_user)


def open_state(environ: Mapping[str, str]) -> ReceiverState:
    """Returns the receiver's state in RECEIVER_BOOK.

    Raises: SystemExit if the file cannot be used.
    """
    path = Path(environ.get("RECEIVER_BOOK") or "receiver.db")
    try:
        return ReceiverState(path)
    except sqlite3.Error as error:
        raise SystemExit(f"RECEIVER_BOOK: {path} cannot be used ({error}); set it to a writable file") from None
