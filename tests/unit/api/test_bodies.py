"""What holds for every request body."""

from typing import get_args

import pytest
from pydantic import BaseModel, ValidationError

import perdure.api.routes.agents
import perdure.api.routes.budgets
import perdure.api.routes.memory
from perdure.api.requests import Body, CommentBody, DecisionBody, SettleBody
from perdure.core.approvals.decisions import Decision

BODIES: list[type[BaseModel]] = [*Body.__subclasses__(), perdure.api.routes.agents.RuleActionBody]
NUMBERS = [
    (body, name)
    for body in BODIES
    for name, field in body.model_fields.items()
    if {int, float} & {field.annotation, *get_args(field.annotation)}
]


def refused(body: type[BaseModel], name: str, value: object) -> bool:
    """Whether this value is, whatever else is missing."""
    try:
        body.model_validate({name: value})
    except ValidationError as error:
        return any(each["loc"][0] == name for each in error.errors())
    return False


@pytest.mark.parametrize(("body", "name"), NUMBERS, ids=[f"{body.__name__}.{name}" for body, name in NUMBERS])
def test_a_number_is_a_number_and_neither_a_truth_value_nor_a_text(body: type[BaseModel], name: str) -> None:
    wrong: list[object] = [True, False, "1", "nan", float("nan"), float("inf"), [1], {}]
    for value in wrong:
        assert refused(body, name, value), f"{body.__name__}.{name} takes {value!r}"
    assert not refused(body, name, 1)


def test_there_are_numbers_to_look_at() -> None:
    assert len(NUMBERS) >= 9 and len(BODIES) >= 17


@pytest.mark.parametrize("unseen", ["", "  ", "\u200b\u2060", "\u3164"])
def test_a_comment_that_nobody_sees_is_none(unseen: str) -> None:
    assert CommentBody(comment=unseen).comment == ""
    decision = DecisionBody(decision=Decision.REJECT, digest="d", comment=unseen, reason_code=unseen)
    assert (decision.comment, decision.reason_code) == ("", "")
    with pytest.raises(ValidationError):
        SettleBody(outcome="happened", comment=unseen)
    assert CommentBody(comment="\u200bno ").comment == "\u200bno ", "what is seen stays as it was said"
