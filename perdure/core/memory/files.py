"""Rules for uploads: safe file names, media types, speed, and tables that every reader parses in the same way.

A name that is a path is rejected. Other characters that could mislead a reader or a file system are removed. Faults of
a table are reported at the upload, not by the turn that uses it.
"""

import io
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from perdure.contracts.errors import CallerError
from perdure.contracts.memory import MAX_COLUMNS, MAX_ROWS
from perdure.core.memory.file_content import TABLES, UnfitContent, check_stream
from perdure.core.text import format_size

MAX_NAME_CHARACTERS = 120
MAX_UPLOAD_BYTES = 20_971_520
"""The default maximum size of a file, 20 MiB; operators can change it."""
BY_ENDING = {
    ".csv": "text/csv",
    ".tsv": "text/tab-separated-values",
    ".json": "application/json",
    ".txt": "text/plain",
}
"""Media types by file extension."""
MEDIA_TYPES = TABLES | {"application/json", "text/plain"}
"""The media types that can be uploaded."""
MIN_BYTES_PER_SECOND = 16_384
"""An upload with a lower average speed is ended. 20 MiB then take 21 minutes at most."""
GRACE_SECONDS = 30.0
"""The time before which the average does not count."""
_ODD = re.compile(r'[<>:"|?*]')
_FORMAT = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def safe_name(given: str) -> str:
    """Returns the name under which a file is stored.

    Raises: CallerError 422 `name_not_safe` for a path, and for a name without printable characters.
    """
    if "/" in given or "\\" in given or given.strip() in ("", ".", ".."):
        raise CallerError("name_not_safe", "The file name must not contain a path", {"name": given[:80]}, status=422)
    text = unicodedata.normalize("NFC", given)
    text = "".join(each for each in text if unicodedata.category(each) not in _FORMAT)
    text = _ODD.sub("_", text).strip().lstrip(".")
    if not text.strip("._ "):
        raise CallerError("name_not_safe", "The file name has no printable characters", status=422)
    if len(text) > MAX_NAME_CHARACTERS:
        stem, dot, ending = text.rpartition(".")
        ending = dot + ending if stem and len(ending) <= 10 else ""
        text = text[: MAX_NAME_CHARACTERS - len(ending)] + ending
    return text


def media_type_of(header: str) -> str:
    """Returns the media type of a Content-Type header.

    Raises: CallerError 415 `unsupported_media_type`.
    """
    kind = header.partition(";")[0].strip().lower()
    if kind not in MEDIA_TYPES:
        known = ", ".join(sorted(MEDIA_TYPES))
        raise CallerError("unsupported_media_type", f"Unsupported file type; use one of {known}", status=415)
    return kind


def check_content(media_type: str, content: bytes) -> None:
    """Checks a whole file in this process, for callers that hold their own data.

    Raises: CallerError 422 with the codes of `check_stream`.
    """
    try:
        check_stream(io.BytesIO(content), media_type, MAX_COLUMNS, MAX_ROWS)
    except UnfitContent as unfit:
        raise CallerError(unfit.code, unfit.message, unfit.details, status=422) from None


def is_too_slow(received_bytes: int, seconds: float) -> bool:
    """Returns whether an upload must be ended because it is too slow."""
    return seconds > GRACE_SECONDS and received_bytes < seconds * MIN_BYTES_PER_SECOND


def too_large(limit_bytes: int, variable: str) -> CallerError:
    """Builds the refusal of a file over the size limit: 413 `too_large`."""
    message = f"The file exceeds {format_size(limit_bytes)}; an operator can raise {variable}"
    return CallerError("too_large", message, {"limit_bytes": limit_bytes, "variable": variable}, status=413)


def find_contradiction(table: Mapping[str, Any]) -> str:
    """Returns the first contradiction in the description of a table and its other tables, or an empty string. Counts
    and ranges that contradict each other are rejected with their position; no described value is quoted. The form is
    validated earlier (perdure/contracts/memory.py, the schema of a pause)."""
    return next(_table_faults(table), "")


def handed_in_fault(payload: Mapping[str, Any]) -> str:
    """Returns what is missing or inconsistent in the result of a plan, or an empty string. Failed work has no such
    fault."""
    if payload.get("ok") is not True:
        return ""
    for name in ("rows", "columns"):
        if name not in payload:
            return f"{name}: is required if `ok` is true"
    if "error" in payload:
        return "error: must be empty if `ok` is true"
    return next(_of_columns(payload["columns"], payload["rows"]), "")


def _table_faults(table: Mapping[str, Any]) -> Iterator[str]:
    yield from _of_columns(table["columns"], table["rows"])
    names = {table["name"]}
    for index, other in enumerate(table.get("others") or ()):
        if other["name"] in names:
            yield f"others.{index}.name: duplicate; plans refer to tables by name"
        names.add(other["name"])
        yield from (f"others.{index}.{fault}" for fault in _of_columns(other["columns"], other["rows"]))


def _of_columns(columns: Sequence[Mapping[str, Any]], rows: int) -> Iterator[str]:
    names = set[str]()
    for index, column in enumerate(columns):
        if column["name"] in names:
            yield f"columns.{index}.name: duplicate"
        names.add(column["name"])
        for count in ("nulls", "distinct"):
            if column[count] > rows:
                yield f"columns.{index}.{count}: exceeds the number of rows"
        least, most = column.get("least"), column.get("most")
        if (least is None) != (most is None):
            yield f"columns.{index}: set both `least` and `most`, or neither"
        elif least is not None and column["kind"] != "quantitative":
            yield f"columns.{index}.least: only numeric columns have a range"
        elif least is not None and most is not None and least > most:
            yield f"columns.{index}.least: exceeds `most`"
