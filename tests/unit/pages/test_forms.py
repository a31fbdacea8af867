"""Forms as they are posted: read whole, within limits, or refused with a status that says why."""

import pytest
from fastapi import Request

from perdure.pages.request import MAX_FORM_BYTES, PageProblem, read_form

FORM = "application/x-www-form-urlencoded"


def posted(body: bytes, kind: str = FORM) -> Request:
    pieces = [body[start : start + 65_536] for start in range(0, len(body), 65_536)] or [b""]

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    return Request({"type": "http", "method": "POST", "headers": [(b"content-type", kind.encode())]}, receive)


async def test_fields_come_in_their_order_blank_ones_included() -> None:
    form = await read_form(posted(b"a=1&b=&a=%202+&c=x%0D%0Ay"))
    assert form.all("a") == ["1", " 2 "]
    assert (form.get("a"), form.get("b", "-"), form.get("z", "-")) == ("1", "", "-")
    assert (form.raw("c"), form.raw("z")) == ("x\ny", None)


@pytest.mark.parametrize(("body", "kind", "status"), [
    (b"a=1", "text/plain", 415),
    (b"a=1", "application/json", 415),
    (b"a=%ff", FORM, 400),
    ("a=é".encode(), FORM, 400),
    (b"&".join([b"a=1"] * 2_001), FORM, 400),
    (b"a=%00", FORM, 422),
    (b"a=" + b"x" * MAX_FORM_BYTES, FORM, 413),
    (b"a=" + b"x" * 10_000_000, FORM, 413),
])  # fmt: skip
async def test_a_foreign_form_is_refused(body: bytes, kind: str, status: int) -> None:
    with pytest.raises(PageProblem) as refused:
        await read_form(posted(body, kind))
    assert refused.value.status == status
