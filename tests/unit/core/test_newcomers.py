"""Names of those who come from a provider elsewhere."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.identity import display_name_from, name_from


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ({"preferred_username": "ann", "email": "x@y"}, "ann"),
        ({"preferred_username": "Ann.Lee@corp.test"}, "ann.lee"),
        ({"preferred_username": "Zoë Müller"}, "zoe-muller"),
        ({"preferred_username": "../../etc"}, "etc"),
        ({"preferred_username": "42"}, None),
        ({"preferred_username": "", "email": "bob@corp.test"}, "bob"),
        ({"preferred_username": ["ann"], "sub": "carl"}, "carl"),
        ({"preferred_username": "李"}, None),
        ({"preferred_username": "erased-1"}, None),
        ({"sub": "a" * 200}, "a" * 63),
        ({}, None),
    ],
)
def test_a_name_is_taken_from_the_first_claim_that_gives_one(claims: dict[str, object], name: str | None) -> None:
    assert name_from(claims) == name


@given(st.dictionaries(st.sampled_from(["preferred_username", "email", "sub"]), st.text() | st.integers()))
def test_whatever_a_provider_says_the_name_is_one_of_ours(claims: dict[str, object]) -> None:
    name = name_from(claims)
    assert name is None or re.fullmatch(r"[a-z][a-z0-9._-]{0,62}", name)


@pytest.mark.parametrize(
    ("claims", "name"),
    [({"name": " Ann  Lee "}, "Ann Lee"), ({"name": "a\u202eb"}, ""), ({"name": 7}, ""), ({}, "")],
)
def test_the_full_name_is_shown_where_it_can_be(claims: dict[str, object], name: str) -> None:
    assert display_name_from(claims) == name
