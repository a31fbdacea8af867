"""The block that `perdure up` prints once everything is ready: values in, text out."""

from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from perdure.local.config import PAGES
from perdure.local.welcome import Welcome, no_app

API = "http://127.0.0.1:8080"
ADDRESSES = (f"{API}/sign-in?code=local.a", "http://localhost:8080/sign-in?code=local.b", f"{API}/docs")
WELCOME = Welcome(
    seconds=9.71, home=Path("/data"), logs=Path("/data/logs"), command="bin/perdure", api=API,
    pages=list(zip(PAGES, ADDRESSES, strict=True)), temporal_ui="http://127.0.0.1:9",
    tokens={role: f"perdure_{role}_x" for role in ("requester", "reviewer", "admin")}, setup_code="ABCD-EFGH",
    left_out=["the app x is left out:", "  a -> b -> a"],
)  # fmt: skip


def test_the_welcome_text_lists_addresses_in_the_order_of_need(snapshot: SnapshotAssertion) -> None:
    assert WELCOME.text() == snapshot


@pytest.mark.parametrize("published", [{}, {"filings": ("rule_32", "rule_37"), "refunds": ("refunds",)}])
def test_without_an_app_commands_are_named(published: dict[str, tuple[str, ...]], snapshot: SnapshotAssertion) -> None:
    assert "\n".join(no_app("bin/perdure", published)) == snapshot
