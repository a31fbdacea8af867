"""perdure/sdk/context.py: what a tool may see and what it may not."""

import pytest

from perdure.sdk.context import UndeclaredSecret
from tests.unit.apps.tool_contexts import card, context


def test_a_tool_reads_the_credentials_that_its_card_names_and_no_other() -> None:
    given = context(card(secrets=("token",)), secrets={"token": "value", "other": "hidden"})
    assert given.secret("token") == "value"
    with pytest.raises(UndeclaredSecret, match="'other'"):
        given.secret("other")


def test_no_credential_and_no_connection_is_in_the_printed_form() -> None:
    shown = repr(context(card(secrets=("token",)), secrets={"token": "value"}))
    assert "value" not in shown and "AsyncClient" not in shown


def test_a_context_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        context().user_id = "somebody else"  # type: ignore[misc]
