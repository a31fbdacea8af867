"""The skeleton's folder loads cleanly, and its stub says the same to the same text, every time."""

from typing import Any

import pytest

from perdure.activities.providers.scripted import Script
from perdure.apps import SHIPPED, App, Engine, load_app, publish
from perdure.contracts.memory import FactScope
from tests.unit.examples.scripted_answers import scripted_answer


@pytest.fixture(scope="module")
def skeleton_app() -> App:
    return load_app(SHIPPED / "skeleton", Engine(topologies=("decision_hub",), script=Script))


async def answer(skeleton_app: App, text: str, *before: dict[str, Any]) -> str:
    return (await scripted_answer(skeleton_app.agents[0].script, (*before, {"role": "user", "content": text})))[0]


def test_the_folder_has_no_mistake_and_publishes_one_strict_agent_without_tools(skeleton_app: App) -> None:
    assert skeleton_app.problems == ()
    (published,) = publish(skeleton_app, [])
    assert (published.definition.id, published.definition.topology) == ("skeleton", "decision_hub")
    assert published.cards == () and published.definition.memory is not None
    assert published.definition.memory.facts == (FactScope.CONVERSATION, FactScope.USER)


@pytest.mark.parametrize(("text", "said"), [
    *((text, text) for text in ("what is this", "memory_write", "two\nlines")),
    ("/echo one two three", "one two three"),
    ("say nothing", ""),
])  # fmt: skip
async def test_the_same_text_gets_the_same_answer(skeleton_app: App, text: str, said: str) -> None:
    note = {"role": "system", "content": "=== Remembered (this person) ===\n- name: Ann"}
    (answered,) = {(await answer(skeleton_app, text)).strip() for _ in range(3)}
    assert answered.endswith(said) and bool(answered) is bool(said)
    assert (await answer(skeleton_app, text, note)).strip() == answered, "what is remembered stands before what is said"
