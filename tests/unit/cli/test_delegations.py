"""`perdure delegations`."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.unit.apps.api_double import ApiDouble, Reply, said
from tests.unit.cli.conftest import Perdure

GIVEN = {"id": "d-1", "to": "tom", "until": "2999-01-31T12:00:00Z"}


@pytest.mark.parametrize(
    ("until", "sent"),
    [
        ("2027-01-31", "2027-02-01T00:00:00+00:00"),
        ("2027-01-31T12:00Z", "2027-01-31T12:00:00+00:00"),
        ("2027-01-31T12:00", "2027-01-31T12:00:00+00:00"),
        ("2027-01-31T12:00+02:00", "2027-01-31T12:00:00+02:00"),
    ],
)
def test_a_date_means_to_its_end_and_a_time_without_a_zone_is_utc(
    perdure: Perdure, stack: ApiDouble, until: str, sent: str
) -> None:
    stack.will(said(GIVEN, 201))
    assert perdure("delegations", "add", "tom", "--until", until).code == 0
    assert (stack.asked[0].path, stack.asked[0].body) == ("/v1/delegations", {"to": "tom", "until": sent})


def test_days_count_from_now(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said(GIVEN, 201))
    assert perdure("delegations", "add", "tom", "--days", "3", "--json").json["id"] == "d-1"
    sent = datetime.fromisoformat(stack.asked[0].body["until"])
    assert abs(sent - datetime.now(UTC) - timedelta(days=3)) < timedelta(minutes=1)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--until", "tomorrow"),
        ("--until", "2027-13-01"),
        ("--until", "9999-12-31"),
        ("--days", "0"),
        ("--days", "1", "--until", "2027-01-31"),
    ],
)
def test_an_end_that_is_none_is_a_usage_error(perdure: Perdure, stack: ApiDouble, words: tuple[str, ...]) -> None:
    assert perdure("delegations", "add", "tom", *words).code == 2
    assert stack.asked == []


def test_an_admin_sees_whose_places_are_lent(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said({"items": [{**GIVEN, "by": "rita"}]}), said({"items": []}))
    listed = perdure("delegations", "list", "--all").out
    assert "rita" in listed and "tom" in listed
    assert len(perdure("delegations", "list", "--all").out.splitlines()) == 1
    assert stack.asked[0].query == {"all": ["true"]}


def test_what_was_given_is_listed_and_taken_back(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said({"items": [GIVEN]}), said({"items": []}), Reply(204), Reply(204))
    listed = perdure("delegations", "list").out
    assert "d-1" in listed and "tom" in listed and "2999-01-31 12:00:00 UTC" in listed
    assert len(perdure("delegations", "list").out.splitlines()) == 1
    assert perdure("delegations", "remove", "d-1").code == 0
    assert perdure("delegations", "remove", "d-1", "--json").json == {"id": "d-1", "removed": True}
    assert [(asked.method, asked.path) for asked in stack.asked[2:]] == [("DELETE", "/v1/delegations/d-1")] * 2
