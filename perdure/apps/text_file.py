"""A file of plain text, or why it cannot be taken."""

from pathlib import Path

from perdure.apps.problems import AppProblem

MOST_TEXT_BYTES = 65_536
"""Of one persona, template, artifact, skill or block: each is sent to a model or a sandbox whole, and kept by every
version of its agents."""


def read_text(path: Path, most_bytes: int = MOST_TEXT_BYTES) -> str | AppProblem:
    """The text at `path`, lines ended by `\\n`; a byte order mark is passed over."""
    try:
        content = path.read_bytes()
    except OSError as error:
        return AppProblem(path, None, f"cannot be read: {error.strerror}")
    if len(content) > most_bytes:
        return AppProblem(path, None, f"has {len(content):,} bytes, more than the {most_bytes:,} that it may have")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return AppProblem(path, content.count(b"\n", 0, error.start) + 1, "is not UTF-8 text here")
    if "\x00" in text:
        return AppProblem(path, text.count("\n", 0, text.index("\x00")) + 1, "holds a NUL, which cannot be stored")
    if not text.strip():
        return AppProblem(path, 1, "is empty")
    return text.replace("\r\n", "\n").replace("\r", "\n")
