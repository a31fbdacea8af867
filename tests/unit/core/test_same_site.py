"""Whose page sent a request, and where a redirect may lead."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.request_origin import is_foreign, local_path


@pytest.mark.parametrize(
    ("host", "origin", "fetch_site", "foreign"),
    [
        ("perdure.test", "", "", False),
        ("perdure.test", "https://perdure.test", "same-origin", False),
        ("perdure.test:8080", "http://perdure.test:8080", "", False),
        ("Perdure.test", "https://perdure.TEST", "", False),
        ("perdure.test", "", "none", False),
        ("perdure.test", "", "same-origin", False),
        ("perdure.test", "https://evil.test", "same-origin", True),
        ("perdure.test", "https://perdure.test.evil.test", "", True),
        ("perdure.test", "https://perdure.test@evil.test", "", True),
        ("perdure.test", "https://perdure.test:8443", "", True),
        ("perdure.test", "null", "", True),
        ("perdure.test", "", "cross-site", True),
        ("perdure.test", "", "same-site", True),
        ("", "https://perdure.test", "", True),
    ],
)
def test_a_page_of_another_site_is_told_by_what_its_browser_says(
    host: str, origin: str, fetch_site: str, foreign: bool
) -> None:
    assert is_foreign(host, origin, fetch_site) is foreign


@pytest.mark.parametrize("path", ["/", "/review", "/review/x?filter=mine&n=2#row", "/a//b"])
def test_a_path_of_this_server_is_gone_to(path: str) -> None:
    assert local_path(path, "/home") == path


@pytest.mark.parametrize(
    "path",
    ["", "review", "//evil.test", "/\\evil.test", "https://evil.test", "/\t/evil.test", "/a\\b", "/\n", "javascript:x"],
)
def test_anything_else_leads_home(path: str) -> None:
    assert local_path(path, "/home") == "/home"


@given(st.text(max_size=30))
def test_no_redirect_leaves_this_server(text: str) -> None:
    path = local_path(text, "/home")
    assert path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
