"""Who may move a prompt template's version, and which texts may be saved at all."""

import pytest

from perdure.core.agents.templates import BEFORE, Stage, archive_refusal, promotion_refusal, text_refusal


@pytest.mark.parametrize(
    ("roles", "may"),
    [({"reviewer"}, True), ({"admin"}, True), ({"requester", "admin"}, True), ({"requester"}, False), (set(), False)],
)
@pytest.mark.parametrize("to", [Stage.PRE_PRODUCTION, Stage.ACTIVE])
def test_reviewers_and_admins_promote_and_nobody_else(to: Stage, roles: set[str], may: bool) -> None:
    refused = promotion_refusal(to, False, roles)
    assert (refused is None) is may
    assert refused is None or (refused.http, refused.code) == (403, "role_required")


@pytest.mark.parametrize(
    ("to", "roles", "code"),
    [
        (Stage.ACTIVE, {"reviewer"}, "own_draft"),
        (Stage.ACTIVE, {"admin", "reviewer"}, "own_draft"),
        (Stage.ACTIVE, {"requester"}, "role_required"),
        (Stage.PRE_PRODUCTION, {"reviewer"}, None),
    ],
)
def test_an_author_shows_the_own_words_and_lets_nobody_else_hear_them(
    to: Stage, roles: set[str], code: str | None
) -> None:
    refused = promotion_refusal(to, True, roles)
    assert (refused.code if refused else None) == code


@pytest.mark.parametrize("stage", list(Stage))
@pytest.mark.parametrize("author", [True, False])
@pytest.mark.parametrize("roles", [{"requester"}, {"reviewer"}])
def test_an_author_archives_the_own_draft_and_a_reviewer_anything(stage: Stage, author: bool, roles: set[str]) -> None:
    may = roles == {"reviewer"} or (author and stage is Stage.DRAFT)
    assert (archive_refusal(stage, author, roles) is None) is may


def test_each_stage_is_reached_from_one_other_and_nothing_leaves_the_archive() -> None:
    assert BEFORE == {Stage.PRE_PRODUCTION: Stage.DRAFT, Stage.ACTIVE: Stage.PRE_PRODUCTION}


def test_a_mark_that_stands_for_no_variable_is_told_with_its_line() -> None:
    refused = text_refusal("You serve {{user_name}}.\nIn {{colour}}, {{ skill_name }}.\n{{")
    assert refused is not None and (refused.http, refused.code) == (422, "template_variable_unknown")
    assert refused.details["unknown"] == [{"line": 2, "name": "colour"}, {"line": 3, "name": ""}]
    assert "user_name" in str(refused.details["known"])
    assert refused.message == "line 2: {{colour}} stands for no variable"


def test_a_text_of_known_variables_is_fine() -> None:
    assert text_refusal("{{user_name}} {{user_role}} {{agent_title}} {{skill_name}} { } }}") is None
