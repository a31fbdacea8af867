"""`perdure init DIR`: creates a small, complete app to start from."""

import shutil
import sys
from pathlib import Path

from perdure.contracts.errors import CallerError

TEMPLATE = Path(__file__).parent / "template"
_CHECKOUT_BIN = Path(__file__).parents[2] / "bin"
_BIN_PLACEHOLDER = "/path/to/perdure/bin"
"""Placeholder in the README for the folder of the `perdure` command that wrote it, so that its lines can be copied."""


def scaffold(folder: Path) -> list[Path]:
    """Writes the template into `folder`, which is created if missing. Returns the written files, in order.

    Raises: CallerError `folder_not_empty`, `not_a_folder`, `cannot_write`; then nothing has been overwritten.
    """
    if folder.exists() and not folder.is_dir():
        raise CallerError("not_a_folder", f"{folder} is a file; name a new or empty folder")
    written: list[Path] = []
    try:
        if folder.is_dir() and any(folder.iterdir()):
            raise CallerError("folder_not_empty", f"{folder} is not empty; name a new or empty folder")
        for source in template_files():
            target = folder / source.relative_to(TEMPLATE)
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.name == "README.md":
                target.write_text(source.read_text().replace(_BIN_PLACEHOLDER, str(_bin_folder())))
            else:
                shutil.copyfile(source, target)
            written.append(target)
    except OSError as error:
        raise CallerError("cannot_write", f"Cannot write to {folder}: {error.strerror}") from error
    return written


def _bin_folder() -> Path:
    """Returns the folder of the command `perdure`: in a checkout its `bin/`, else that of the environment."""
    return _CHECKOUT_BIN if (_CHECKOUT_BIN / "perdure").is_file() else Path(sys.executable).parent


def template_files() -> list[Path]:
    """Returns the files of the template, without files that Python creates when it runs them."""
    return sorted(path for path in TEMPLATE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
