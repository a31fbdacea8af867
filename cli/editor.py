"""Arguments in the reviewer's own editor."""

import json
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from local.config import own_environ


class EditFailed(Exception):
    """No editor, or what it left is no JSON object; the message says which."""


def edited(args: Mapping[str, Any]) -> dict[str, Any]:
    """`args` after $VISUAL or $EDITOR; the file is readable by its owner only, and gone afterwards.

    Raises: EditFailed.
    """
    return parsed(edited_text(json.dumps(args, indent=2, ensure_ascii=False) + "\n", "arguments.json"))


def edited_text(text: str, name: str) -> str:
    """`text` after the editor, in a file called `name`.

    Raises: EditFailed.
    """
    environ = own_environ()
    chosen = environ.get("VISUAL") or environ.get("EDITOR") or next(filter(shutil.which, ("nano", "vi")), None)
    if not chosen:
        raise EditFailed("set EDITOR, or give what is new as an option")
    with tempfile.TemporaryDirectory(prefix="perdure-edit-") as folder:
        path = Path(folder) / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)
        try:
            done = subprocess.run([*shlex.split(chosen), str(path)], check=False)
        except (OSError, ValueError) as error:
            raise EditFailed(f"the editor {chosen!r} does not start: {error}") from error
        if done.returncode:
            raise EditFailed(f"the editor ended with {done.returncode}; nothing was sent")
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise EditFailed(f"what the editor left cannot be read: {error}; nothing was sent") from error


def parsed(text: str) -> dict[str, Any]:
    """Arguments from JSON text.

    Raises: EditFailed.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise EditFailed(f"that is not JSON: {error}; nothing was sent") from error
    if not isinstance(value, dict):
        raise EditFailed("the arguments must be a JSON object; nothing was sent")
    return value
