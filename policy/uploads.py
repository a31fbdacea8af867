"""Which files are taken: names that name nothing but a file, and tables that every reader reads alike.

A name that tries to be a path is refused; what else could fool a reader or a file system is taken out of it. What is
wrong with a table is said when it comes, not by the turn that would work with it.
"""

import csv
import io
import re
import unicodedata

from contracts.errors import CallerError
from contracts.tables import MOST_COLUMNS, MOST_ROWS

MOST_NAME_CHARACTERS = 120
TABLES = frozenset({"text/csv", "text/tab-separated-values"})
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
_HEADER_BYTES = 65_536
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
    """Take seconds for the largest table: call it in a thread.

    Raises: CallerError 422 `file_empty`, `file_has_nul`, `file_not_utf8`, `table_broken`, `table_too_large`.
    """
    if not content.strip():
        raise CallerError("file_empty", "there is nothing in the file", status=422)
    if b"\x00" in content:
        raise CallerError("file_has_nul", "the file holds a NUL, which no text does", status=422)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CallerError("file_not_utf8", f"the file is not UTF-8 at byte {error.start}", status=422) from None
    if media_type in TABLES:
        _check_table(text, separator_of(media_type, content))


def separator_of(media_type: str, content: bytes) -> str:
    """What stands between a table's cells, by its first line: a semicolon where that line has one and no comma, as
    spreadsheets write it where the comma is in the numbers."""
    if media_type == "text/tab-separated-values":
        return "\t"
    header = content[:_HEADER_BYTES].split(b"\n", 1)[0].split(b"\r", 1)[0]
    return ";" if b";" in header and b"," not in header else ","


def _check_table(text: str, delimiter: str) -> None:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        header = next(reader, [])
        width, rows = len(header), 0
        if width > MOST_COLUMNS:
            raise _too_large("columns", MOST_COLUMNS)
        for row in reader:
            rows += bool(row)
            if rows > MOST_ROWS:
                raise _too_large("rows", MOST_ROWS)
            if row and len(row) != width:
                raise csv.Error(f"has {len(row)} fields where the header has {width}")
    except csv.Error as error:
        told = f"line {reader.line_num}: {error}"
        raise CallerError("table_broken", told, {"line": reader.line_num}, status=422) from None
    names = [name.strip() for name in header]
    if not all(names) or len(set(names)) < len(names):
        raise CallerError("table_broken", "every column needs a name of its own in the first line", status=422)
    if not rows:
        raise CallerError("table_broken", "there are no rows below the names", status=422)


def _too_large(what: str, most: int) -> CallerError:
    told = f"a table has {most} {what} at most"
    return CallerError("table_too_large", told, {"limit": what, "most": most}, status=422)
