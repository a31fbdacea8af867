"""The lines about a wrong setting or file: they name it, and never show a secret."""

from pathlib import Path

import pytest
from pydantic import BaseModel, Field, SecretStr, ValidationError

from perdure.core.faults import file_fault, header_fault, named_texts, setting_faults
from perdure.core.text import without_userinfo


class Model(BaseModel):
    proxy: str = Field(default="", pattern="^https?://[^/]+$", alias="PROXY")
    size: int = Field(default=1, ge=1, le=9, alias="SIZE")
    secret: SecretStr | None = Field(default=None, max_length=3, alias="SECRET")
    on: bool = Field(default=False, alias="ON")


@pytest.mark.parametrize(("name", "value", "shown"), [
    ("PROXY", "http://user:hush@proxy:3128/x", "proxy:3128/x"),
    ("PROXY", "user:hush@proxy:3128", "proxy:3128"),
    ("PROXY", f"{'u' * 90}:hush@proxy/", "proxy/"),
    ("PROXY", "http://user:hu@sh@proxy/x", "proxy/x"),
    ("PROXY", "p" * 81, "p" * 80 + "'…"),
    ("SIZE", "0", "from 1 to 9"),
    ("SIZE", "user:hush@9", "***@9"),
    ("SECRET", "hush", "SECRET"),
    ("ON", "perhaps", "true or false"),
])  # fmt: skip
def test_a_wrong_setting_is_named_with_its_value_unless_it_is_a_secret(name: str, value: str, shown: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Model.model_validate({name: value})
    line = setting_faults(caught.value, Model)
    assert line.startswith(f"{name} ") and shown in line and "\n" not in line
    assert "hu" not in line and "sh@" not in line and "user" not in line


@pytest.mark.parametrize(("text", "expected"), [
    *((same, same) for same in ("", "http://proxy:3128/x", "a://b://c")),
    ("http://u:p@h, https://v:q@i/", "http://***@i/"),
    ("u:p/q#r@h", "***@h"),
])  # fmt: skip
def test_a_url_is_shown_without_user_name_and_password(text: str, expected: str) -> None:
    assert without_userinfo(text) == expected


@pytest.mark.parametrize(("content", "part"), [
    (b"\xff", "0xff"), (b"{", "JSON"), (b"[]", "damaged"), (b'{"a": 5}', "'a'"), (None, "No such file"),
])  # fmt: skip
def test_a_wrong_file_is_named_with_its_fault_and_the_advice(tmp_path: Path, content: bytes | None, part: str) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises((OSError, ValueError)) as caught:
        named_texts(path.read_text("utf-8"))
    line = file_fault(path, caught.value, "do this")
    assert line.startswith(f"{path} ") and part in line and line.endswith("; do this")


@pytest.mark.parametrize("fit", ["x", "!~", "eyJ.x"])
def test_only_visible_ascii_is_valid_in_a_header(fit: str) -> None:
    assert not header_fault(fit)
    assert all(header_fault(unfit) for unfit in ("", f"{fit} ", f"{fit}\n", f"\r{fit}", f"{fit}ü", f"\x7f{fit}"))
