"""`perdure effects`: settled once, by who has seen it."""

import pytest

from tests.unit.apps.api_double import ApiDouble, said
from tests.unit.cli.conftest import Perdure
from tests.unit.cli.test_outputs import EFFECT


def test_before_the_deadline_nobody_is_told_to_say_that_it_did_not_happen(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said({**EFFECT, "deadline": "2999-01-01T00:00:00Z"}))
    shown = perdure("effects", "show", "pdk_1").out
    assert "2999-01-01 00:00:00 UTC" in shown
    assert "settle pdk_1 happened" in shown and "did_not_happen" not in shown


def test_settling_shows_the_effect_first_and_then_states_it(perdure: Perdure, stack: ApiDouble) -> None:
    settled = {"key": "pdk_1", "outcome": "happened", "settled_by": "reviewer"}
    stack.will(said(EFFECT), said(settled))
    ended = perdure("effects", "settle", "pdk_1", "happened", "--comment", "seen")
    assert ended.code == 0 and ended.out.count('"order": "1"') == 1
    assert "decided_by" not in ended.out and "rita" in ended.out
    assert stack.asked[1].body == {"outcome": "happened", "comment": "seen"}


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_what_is_settled_already_is_not_settled_again(
    perdure: Perdure, stack: ApiDouble, as_json: tuple[str, ...]
) -> None:
    stack.will(said({**EFFECT, "state": "done", "settled_by": "rita"}))
    ended = perdure("effects", "settle", "pdk_1", "happened", "--comment", "seen", *as_json)
    assert (ended.code, len(stack.asked)) == (5, 1) and "rita" in ended.err
