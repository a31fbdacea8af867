"""Links as a person asks for them."""

import httpx
import pytest

from tests.unit.apps.api_double import ApiDouble, said
from tests.unit.cli.conftest import Perdure

MADE = {"code": "local.abc", "expires_at": "2026-01-01T10:15:00Z"}


@pytest.mark.parametrize(
    ("words", "role", "host"), [((), "requester", "127.0.0.1"), (("reviewer",), "reviewer", "localhost")]
)
def test_each_local_user_has_a_name_of_the_machine(
    perdure: Perdure, stack: ApiDouble, words: tuple[str, ...], role: str, host: str
) -> None:
    stack.will(said(MADE, 201))
    ended = perdure("link", *words, "--path", "/chat")
    assert ended.code == 0
    address = httpx.URL(ended.out.strip())
    assert (address.host, address.port, address.path) == (host, httpx.URL(stack.url).port, "/sign-in")
    assert dict(address.params) == {"code": "local.abc", "next": "/chat"}
    (asked,) = stack.asked
    assert (asked.method, asked.path, asked.headers["authorization"]) == ("POST", "/v1/auth/codes", f"Bearer t-{role}")
