"""Reading the wait that another side asks for."""

from datetime import UTC, datetime

import pytest

from perdure.core.calls.retries import retry_after_seconds

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after": " 0.5 "}, 0.5),
        ({"RETRY-AFTER": "0"}, 0.0),
        ({"Retry-After": "Sat, 21 Nov 2026 12:00:30 GMT"}, 30.0),
        ({"Retry-After": "Sat, 21 Nov 2026 12:00:30 -0000"}, 30.0),
        ({"Retry-After": "Sat, 21 Nov 2026 13:00:30 +0100"}, 30.0),
        ({"Retry-After": "Sat, 21 Nov 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "1"}, 1.0),
        ({"Retry-After": "-3"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "in a while"}, None),
        ({"Retry-After": "Sat, 99 Nov 2026 12:00:30 GMT"}, None),
        ({"Retry-After": ""}, None),
        ({}, None),
    ],
)
def test_a_wait_is_read_in_each_of_its_forms(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_seconds(headers, NOW) == seconds
