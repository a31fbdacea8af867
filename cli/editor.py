"""A text in the user's own editor."""

import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from cli.asking import at_terminal
from local.config import own_environ


class EditFailed(Exception):
    """No editor, or it failed, or nothing came of it; the message says which."""


class NoTemporaryFile(EditFailed):
    """There is nowhere to write what the editor would open."""


def edited_text(text: str, name: str, instead: str) -> str:
    """`text` after $VISUAL or $EDITOR, in a file called `name`; readable by its owner only, and gone afterwards.
    `instead` is the option that needs no editor.

    Raises: EditFailed; NoTemporaryFile where the disk is full, or no folder may be written to.
    """
    environ = own_environ()
    chosen = environ.get("VISUAL") or environ.get("EDITOR")
    if not chosen and at_terminal():  # without one nano and vi wait for ever
        chosen = next(filter(shutil.which, ("nano", "vi")), None)
    if not chosen:
        raise EditFailed(f"there is no editor: set EDITOR (without a terminal, to a program), or give {instead}")
    try:
        made = tempfile.TemporaryDirectory(prefix="perdure-edit-")
    except OSError as error:
        raise _no_file(error) from error
    with made as folder:
        path = Path(folder) / name
        try:
            path.write_text(text, encoding="utf-8")
            path.chmod(0o600)
        except OSError as error:
            raise _no_file(error) from error
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


def _no_file(error: OSError) -> NoTemporaryFile:
    return NoTemporaryFile(f"no temporary file can be made for the editor: {error.strerror or error}; nothing was sent")
