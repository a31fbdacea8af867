"""Which files are taken: names that name nothing but a file, and tables that every reader reads alike.

A name that tries to be a path is refused; what else could fool a reader or a file system is taken out of it. What is
wrong with a table is said when it comes, not by the turn that would work with it.
"""

import io
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from perdure.contracts.errors import CallerError
from perdure.contracts.memory import MOST_COLUMNS, MOST_ROWS
from perdure.core.memory.file_content import TABLES, UnfitContent, check_stream
from perdure.core.text import size

MOST_NAME_CHARACTERS = 120
MOST_UPLOAD_BYTES = 20_971_520
"""The longest file that is taken where an operator says nothing else, 20 MiB."""
BY_ENDING = {
    ".csv": "text/csv",
    ".tsv": "text/tab-separated-values",
    ".json": "application/json",
    ".txt": "text/plain",
}
"""What a file is by the end of its name."""
MEDIA_TYPES = TABLES | {"application/json", "text/plain"}
"""What may be uploaded."""
LEAST_BYTES_PER_SECOND = 16_384
"""An upload that is slower than this on average is ended. 20 MiB then take 21 minutes at most."""
GRACE_SECONDS = 30.0
"""The time before which the average does not count."""
_ODD = re.compile(r'[<>:"|?*]')
_FORMAT = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def safe_name(given: str) -> str:
    """The name under which a file is kept.

    Raises: CallerError 422 `name_not_safe` for a path, and for what is no name at all.
    """
    if "/" in given or "\\" in given or given.strip() in ("", ".", ".."):
        raise CallerError("name_not_safe", "a file's name is no path", {"name": given[:80]}, status=422)
    text = unicodedata.normalize("NFC", given)
    text = "".join(each for each in text if unicodedata.category(each) not in _FORMAT)
    text = _ODD.sub("_", text).strip().lstrip(".")
    if not text.strip("._ "):
        raise CallerError("name_not_safe", "nothing of this name can be shown", status=422)
    if len(text) > MOST_NAME_CHARACTERS:
        stem, dot, ending = text.rpartition(".")
        ending = dot + ending if stem and len(ending) <= 10 else ""
        text = text[: MOST_NAME_CHARACTERS - len(ending)] + ending
    return text


def media_type_of(header: str) -> str:
    """What a file says that it is.

    Raises: CallerError 415 `unsupported_media_type`.
    """
    kind = header.partition(";")[0].strip().lower()
    if kind not in MEDIA_TYPES:
        known = ", ".join(sorted(MEDIA_TYPES))
        raise CallerError("unsupported_media_type", f"a file is one of: {known}", status=415)
    return kind


def check_content(media_type: str, content: bytes) -> None:
    """Checks a whole file in this process, for callers that hold their own data.

    Raises: CallerError 422 with the codes of `check_stream`.
    """
    try:
        check_stream(io.BytesIO(content), media_type, MOST_COLUMNS, MOST_ROWS)
    except UnfitContent as unfit:
        raise CallerError(unfit.code, unfit.message, unfit.details, status=422) from None


def is_too_slow(received_bytes: int, seconds: float) -> bool:
    """Whether an upload that has brought so much in so many seconds is to be ended."""
    return seconds > GRACE_SECONDS and received_bytes < seconds * LEAST_BYTES_PER_SECOND


def too_large(limit_bytes: int, variable: str) -> CallerError:
    """The refusal of a file that is larger than one file may be: 413 `too_large`."""
    message = f"a file may have {size(limit_bytes)} at most; the operator can raise {variable}"
    return CallerError("too_large", message, {"limit_bytes": limit_bytes, "variable": variable}, status=413)


# --- Whether what a client tells of a table of its own can be true: counts and ranges that contradict each other are
# refused with their place, and nothing of what was told is quoted.
# The form itself is checked before (perdure/contracts/memory.py, the schema of a pause).


def contradiction(told: Mapping[str, Any]) -> str:
    """Of a table with those beside it: the first thing that cannot be; empty where all can."""
    return next(_of_tables(told), "")


def handed_in_fault(payload: Mapping[str, Any]) -> str:
    """Of what came of a plan: what is missing of it, or cannot be; empty for a result, and for work that failed."""
    if payload.get("ok") is not True:
        return ""
    for name in ("rows", "columns"):
        if name not in payload:
            return f"{name}: is missing, though ok says that the plan was carried out"
    if "error" in payload:
        return "error: says what failed, though ok says that nothing did"
    return next(_of_columns(payload["columns"], payload["rows"]), "")


def _of_tables(told: Mapping[str, Any]) -> Iterator[str]:
    yield from _of_columns(told["columns"], told["rows"])
    names = {told["name"]}
    for place, other in enumerate(told.get("others") or ()):
        if other["name"] in names:
            yield f"others.{place}.name: is given twice; plans call tables by their names"
        names.add(other["name"])
        yield from (f"others.{place}.{fault}" for fault in _of_columns(other["columns"], other["rows"]))


def _of_columns(columns: Sequence[Mapping[str, Any]], rows: int) -> Iterator[str]:
    names = set[str]()
    for place, column in enumerate(columns):
        if column["name"] in names:
            yield f"columns.{place}.name: is given twice"
        names.add(column["name"])
        for count in ("nulls", "distinct"):
            if column[count] > rows:
                yield f"columns.{place}.{count}: is more than there are rows"
        least, most = column.get("least"), column.get("most")
        if (least is None) != (most is None):
            yield f"columns.{place}: has one end of a range without the other"
        elif least is not None and column["kind"] != "quantitative":
            yield f"columns.{place}.least: only numbers have a range"
        elif least is not None and most is not None and least > most:
            yield f"columns.{place}.least: is more than most"
