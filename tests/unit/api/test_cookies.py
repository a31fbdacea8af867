"""The session cookie: what the browser is told, and what is read of what it sends."""

from datetime import UTC, datetime

import pytest
from starlette.responses import Response

from perdure.api import credentials


def test_over_tls_no_script_no_neighbour_and_no_plain_connection_gets_it() -> None:
    answer = Response()
    credentials.set_cookies(
        answer, credentials.SESSION_COOKIE, "v", secure=True, expires=datetime(2027, 1, 1, tzinfo=UTC)
    )
    said = {part.strip().lower() for part in answer.headers["set-cookie"].split(";")}
    assert {"__host-perdure_session=v", "secure", "httponly", "samesite=lax", "path=/"} <= said
    assert not any(part.startswith("domain") for part in said)


def test_without_tls_it_is_still_out_of_reach_of_scripts() -> None:
    answer = Response()
    credentials.set_cookies(
        answer, credentials.SESSION_COOKIE, "v", secure=False, expires=datetime(2027, 1, 1, tzinfo=UTC)
    )
    said = answer.headers["set-cookie"].lower()
    assert said.startswith("perdure_session=v") and "httponly" in said and "secure" not in said


@pytest.mark.parametrize("secure", [True, False])
def test_it_is_cleared_under_its_own_name(secure: bool) -> None:
    name, value = credentials.clearing_cookies(credentials.SESSION_COOKIE, secure=secure)
    said = value.decode()
    assert name == b"set-cookie" and said.startswith(
        credentials.cookie_name(credentials.SESSION_COOKIE, secure=secure) + "="
    )
    assert "Max-Age=0" in said and ("Secure" in said) is secure


@pytest.mark.parametrize(
    ("header", "secure", "value"),
    [
        ("perdure_session=a.b-c", False, "a.b-c"),
        ("x=1; perdure_session=v ; y", False, "v"),
        ("__Host-perdure_session=v", True, "v"),
        ("perdure_session=planted", True, ""),
        ("perdure_session=one; perdure_session=two", False, ""),
        ("perdure_session=same; perdure_session=same", False, "same"),
        ("", False, ""),
        ("perdure_session", False, ""),
        ("perdure_session=" + "x" * 20_000, False, ""),
    ],
)
def test_a_cookie_is_read_only_where_it_says_one_thing(header: str, secure: bool, value: str) -> None:
    assert credentials.read_cookie(header, credentials.SESSION_COOKIE, secure=secure) == value
