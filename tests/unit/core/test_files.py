"""Files: uploaded, and tables of a client."""

import unicodedata
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.errors import CallerError
from perdure.core.memory import files
from perdure.core.memory.file_content import UnfitContent, check_stream
from perdure.core.memory.files import (
    check_content,
    find_contradiction,
    handed_in_fault,
    is_too_slow,
    safe_name,
    too_large,
)

NO_NAMES = ["../../etc/passwd", "..\\boot.ini", "/abs.csv", "..", ".", "", " ", "\u200b", "..."]


@pytest.mark.parametrize(("name", "kept"), [
    *(("sales.csv", "sales.csv"), (" my sales.csv ", "my sales.csv"), (".hidden.csv", "hidden.csv")),
    *(("a\u202egnp.csv", "agnp.csv"), ("a\x00b\n.csv", "ab.csv"), ("con:aux?.csv", "con_aux_.csv")),
    *(("e\u0301te\u0301.csv", "\u00e9t\u00e9.csv"), ("x" * 300 + ".csv", "x" * 116 + ".csv")),
    *((name, None) for name in NO_NAMES),
])  # fmt: skip
def test_a_file_name_keeps_its_harmless_part_and_a_path_is_refused(name: str, kept: str | None) -> None:
    if kept is not None:
        assert safe_name(name) == kept
        return
    with pytest.raises(CallerError) as refused:
        safe_name(name)
    assert (refused.value.code, refused.value.http) == ("name_not_safe", 422)


@given(st.text(max_size=300))
def test_no_stored_file_name_is_a_path_or_hides_characters(name: str) -> None:
    try:
        kept = safe_name(name)
    except CallerError:
        return
    assert 0 < len(kept) <= files.MAX_NAME_CHARACTERS and not kept.startswith(".")
    assert not set(kept) & set('/\\<>:"|?*\x00')
    assert all(unicodedata.category(each) not in ("Cc", "Cf", "Cs") for each in kept)


BROKEN = [b'a,b\n1,"open\n', b'a,b\n1,"x"y\n', b"a,b\n1,2,3\n", b"a,a\n1,2\n", b"a,\n1,2\n", b"a,b\n"]
MANY = ",".join(f"c{n}" for n in range(201)).encode() + b"\n" + b",".join([b"1"] * 201) + b"\n"


@pytest.mark.parametrize(("content", "code", "details"), [
    *((content, "file_empty", {}) for content in (b"", b" \n")),
    (b"a,b\n1,\x002\n", "file_has_nul", {}),
    (b"a,b\n1,\xff\n", "file_not_utf8", {}),
    *((content, "table_broken", {}) for content in (*BROKEN, b"a,b\n" + b"x" * 200_000 + b",1\n")),
    (MANY, "table_too_large", {"limit": "columns", "most": 200}),
    (b"a\n" + b"1\n" * 1_000_001, "table_too_large", {"limit": "rows", "most": 1_000_000}),
])  # fmt: skip
def test_a_table_that_is_broken_or_too_large_is_refused_with_a_code(content: bytes, code: str, details: Any) -> None:
    with pytest.raises(CallerError) as refused:
        check_content("text/csv", content)
    assert (refused.value.code, refused.value.http) == (code, 422)
    assert details.items() <= refused.value.details.items()


def test_a_whole_table_is_taken_whatever_its_columns_are_called() -> None:
    for whole in (b'a,b\n1,"x, ""y""\nz"\n', b"\xef\xbb\xbfa,b\r\n1,2\r\n", b'../../etc/passwd,"<script>"\n1,2\n'):
        check_content("text/csv", whole)


def test_other_media_types_and_large_files_are_refused_and_slow_uploads_end() -> None:
    for header in ("", "application/zip", "text/html", "multipart/form-data; boundary=x"):
        with pytest.raises(CallerError) as refused:
            files.media_type_of(header)
        assert refused.value.http == 415
    large = too_large(20 * 2**20, "PERDURE_UPLOAD_BYTES")
    assert (large.code, large.http, large.details["limit_bytes"]) == ("too_large", 413, 20 * 2**20)
    fast = [(0, 0.0), (0, 29.0), (16_384 * 31, 31.0), (20_971_520, 1_000.0)]
    assert not any(is_too_slow(*each) for each in fast)
    assert is_too_slow(1, 31.0) and is_too_slow(16_384 * 100 - 1, 100.0)


@pytest.mark.parametrize("before", [0, 1, 2**20 - 1, 2**20, 2**20 + 1])
def test_invalid_utf8_is_found_at_any_chunk_boundary(before: int) -> None:
    with pytest.raises(UnfitContent) as unfit:
        check_stream(BytesIO(b"a" * before + b"\xe2\x82"), "text/plain", 200, 10)
    assert (unfit.value.code, unfit.value.details) == ("file_not_utf8", {"byte": before})
    check_stream(BytesIO(b"a" * before + "€".encode()), "text/plain", 200, 10)


@given(st.binary(max_size=300))
def test_an_accepted_text_is_utf8_without_a_nul(content: bytes) -> None:
    try:
        check_stream(BytesIO(content), "text/plain", 200, 10)
    except UnfitContent as unfit:
        assert unfit.code in ("file_empty", "file_has_nul", "file_not_utf8")
        return
    assert content.strip() and "\x00" not in content.decode()


COLUMN: dict[str, Any] = {"name": "n", "kind": "quantitative", "distinct": 2, "nulls": 1, "least": -1, "most": 3.5}
NAMES: dict[str, Any] = {"name": "side", "kind": "nominal", "distinct": 3, "nulls": 0}
TABLE: dict[str, Any] = {"name": "t", "rows": 3, "columns": [NAMES, COLUMN]}
RESULT: dict[str, Any] = {"ok": True, "rows": 3, "columns": [NAMES, COLUMN]}


@pytest.mark.parametrize(("changed", "place"), [
    *(({"least": 4}, ".least"), ({"least": None}, ""), ({"kind": "nominal"}, ".least"), ({"nulls": 4}, ".nulls")),
    *(({"distinct": 4}, ".distinct"), ({"name": "side"}, ".name")),
])  # fmt: skip
def test_counts_and_ranges_that_contradict_each_other_are_reported_with_their_place(changed: Any, place: str) -> None:
    place = f"columns.1{place}"
    columns = [NAMES, {**COLUMN, **changed}]
    assert find_contradiction({**TABLE, "columns": columns}).startswith(f"{place}: ")
    assert handed_in_fault({**RESULT, "columns": columns}).startswith(f"{place}: ")
    beside = {**TABLE, "others": [{**TABLE, "name": "u", "columns": columns}]}
    assert find_contradiction(beside).startswith(f"others.0.{place}: ")


def test_a_consistent_table_is_accepted_but_no_duplicate_name_or_partial_result() -> None:
    assert find_contradiction(TABLE) == "" == find_contradiction({**TABLE, "others": [{**TABLE, "name": "u"}]})
    for payload in (RESULT, {"ok": False}, {"ok": False, "error": "no"}, {"text": "another kind of answer"}):
        assert handed_in_fault(payload) == ""
    assert find_contradiction({**TABLE, "others": [TABLE]})
    for name in ("rows", "columns"):
        assert handed_in_fault({key: value for key, value in RESULT.items() if key != name}).startswith(f"{name}: ")
    assert handed_in_fault({**RESULT, "error": "no"}).startswith("error: ")
