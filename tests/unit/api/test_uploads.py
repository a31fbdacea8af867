"""Uploads on their way in: to the disk, within time and space, checked by a real process."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from perdure.api import uploads
from perdure.api.uploads import Uploads, upload_folder
from perdure.contracts.errors import CallerError, UpstreamUnavailable


async def body(*chunks: bytes, pause: float = 0.0) -> AsyncGenerator[bytes, None]:
    for chunk in chunks:
        yield chunk
        await asyncio.sleep(pause)


def service(folder: Path, most_bytes: int = 1_000_000) -> Uploads:
    return Uploads(folder, most_bytes, per_user=3)


def names(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]


async def test_an_upload_is_stored_byte_for_byte_in_an_unnamed_file(tmp_path: Path) -> None:
    chunks = [bytes([n]) * 70_000 for n in range(1, 9)]
    async with service(tmp_path).receive("t", "ann", None, body(*chunks)) as spooled:
        assert names(tmp_path) == []
        async with service(tmp_path).content(spooled) as content:
            assert bytes(content) == b"".join(chunks)
        assert spooled.size_bytes == 560_000
    assert spooled.file.closed


async def test_an_upload_over_its_limit_ends_and_its_space_is_freed(tmp_path: Path) -> None:
    receiver = service(tmp_path, 1_000)
    for _ in range(5):  # more often than one person may have uploads under way
        with pytest.raises(CallerError) as refused:
            async with receiver.receive("t", "ann", None, body(b"x" * 999, b"xx")):
                pass
        assert (refused.value.code, refused.value.http) == ("too_large", 413)
        assert refused.value.details["limit_bytes"] == 1_000
    assert receiver._reserved_bytes == 0 and not receiver._uploads_by_user
    assert [receiver.check_length(announced) for announced in ("", "-1", "1000")] == [None, None, 1_000]
    with pytest.raises(CallerError):
        receiver.check_length("1001")


async def test_a_stalled_body_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "_IDLE_SECONDS", 0.1)
    with pytest.raises(CallerError) as refused:
        async with service(tmp_path).receive("t", "ann", None, body(b"x", pause=30)):
            pass
    assert (refused.value.code, refused.value.http) == ("body_too_slow", 408)


async def test_without_disk_space_no_upload_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = service(tmp_path)
    monkeypatch.setattr(uploads, "_SPARE_BYTES", 2**62)
    with pytest.raises(UpstreamUnavailable) as refused:
        async with receiver.receive("t", "ann", 10, body(b"x")):
            pass
    assert (refused.value.code, refused.value.http_status) == ("disk_full", 503)
    monkeypatch.undo()
    async with receiver.receive("t", "ann", 10, body(b"x")) as spooled:
        assert spooled.size_bytes == 1


@pytest.mark.parametrize(("media_type", "content", "code"), [
    ("text/csv", b"a,b\n1,2\n", ""), ("text/plain", b"a,b\n1\n", ""), ("text/csv", b"", "file_empty"),
    ("text/csv", b'a,b\n1,"open\n', "table_broken"), ("text/plain", b"a\xff", "file_not_utf8"),
    ("text/csv", b"a\n" + b"1\n" * 1_000_001, "table_too_large"),
    pytest.param("text/csv", b"a,b\n" + b"abcdefgh," * 2_000_000, "table_too_costly", id="needs too much"),
])  # fmt: skip
async def test_the_process_returns_codes_of_rules(tmp_path: Path, media_type: str, content: bytes, code: str) -> None:
    receiver = service(tmp_path, 20_000_000)
    async with receiver.receive("t", "ann", len(content), body(content)) as spooled:
        if not code:
            await receiver.check(spooled, media_type)
            return
        with pytest.raises(CallerError) as refused:
            await receiver.check(spooled, media_type)
    assert (refused.value.code, refused.value.http) == (code, 422)


async def test_the_checking_process_gets_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "told"
    program = tmp_path / "program.py"
    program.write_text(
        f"import os, sys\nopen({str(told)!r}, 'w').write(repr(dict(os.environ)))\nprint('{{\"fit\": true}}')\n"
    )
    monkeypatch.setattr(uploads, "_PROGRAM", program)
    monkeypatch.setenv("DATABASE_URL", "hunter2")
    receiver = service(tmp_path)
    async with receiver.receive("t", "ann", None, body(b"x")) as spooled:
        await receiver.check(spooled, "text/plain")
    assert "hunter2" not in told.read_text() and "DATABASE_URL" not in told.read_text()


def test_the_spool_folder_is_private_and_an_unusable_setting_is_refused(tmp_path: Path) -> None:
    folder = upload_folder(None, tmp_path / "home")
    assert folder == tmp_path / "home" / "uploads" and folder.stat().st_mode & 0o777 == 0o700
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert upload_folder(None, blocked) != blocked / "uploads", "the system's temporary folder instead"
    with pytest.raises(SystemExit, match="PERDURE_UPLOAD_FOLDER"):
        upload_folder(blocked / "here", tmp_path)
