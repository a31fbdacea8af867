"""Each typed activity reference has exactly one activity, of its types, where the turn's routing sends it."""

import importlib
from collections.abc import Callable, Iterator
from typing import Any, cast, get_type_hints

import pytest
from temporalio import activity

from perdure.activities.dependencies import Deps
from perdure.contracts import activities as contracts
from perdure.contracts.activities import ALL, ActivityRef
from perdure.contracts.turns import Kind, Routing
from perdure.worker.queues import _activities
from tests.repo.committed import texts


def name_of(function: Callable[..., Any]) -> str | None:
    found = activity._Definition.from_callable(function)
    return found.name if found else None


def defined() -> Iterator[tuple[str, Callable[..., Any]]]:
    """(name, function) of every activity that a module of perdure/activities/ defines."""
    for path, text in texts(".py", within=("perdure/activities",)):
        if "activity.defn" not in text:
            continue
        module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
        owners = [value for value in vars(module).values() if isinstance(value, type)] + [module]
        for value in (each for owner in owners for each in vars(owner).values() if callable(each)):
            name = name_of(value) if getattr(value, "__module__", "") == module.__name__ else None
            if name is not None:
                yield name, value


def fault_of(ref: ActivityRef[Any, Any], found: list[Callable[..., Any]]) -> str | None:
    if len(found) != 1:
        return f"{ref.name} has {len(found)} activities; write exactly one @activity.defn(name={ref.name!r})"
    hints = get_type_hints(found[0])
    output = hints.pop("return", None)
    if [*hints.values()] != [ref.input] or output is not ref.output:
        return f"{ref.name} takes {hints} and gives {output}; contracts say {ref.input} and {ref.output}"
    return None


@pytest.mark.parametrize("ref", ALL, ids=lambda ref: ref.name)
def test_each_reference_has_one_activity_with_its_types(ref: ActivityRef[Any, Any]) -> None:
    fault = fault_of(ref, [function for name, function in defined() if name == ref.name])
    assert fault is None, fault


def test_each_activity_has_a_reference_and_each_reference_is_in_all() -> None:
    unknown = {name for name, _ in defined()} - {ref.name for ref in ALL}
    assert not unknown, f"add references for {sorted(unknown)} to perdure/contracts/activities.py, and to ALL"
    held = [name for name, value in vars(contracts).items() if isinstance(value, ActivityRef)]
    assert len({ref.name for ref in ALL}) == len(ALL) == len(held), f"put every reference in ALL: {held}"


@pytest.mark.parametrize("routing", [Routing.compact(), Routing.spread()], ids=["compact", "spread"])
@pytest.mark.parametrize("ref", ALL, ids=lambda ref: ref.name)
def test_each_activity_is_served_where_each_routing_sends_it(ref: ActivityRef[Any, Any], routing: Routing) -> None:
    queues = {Routing.spread().queue(kind): kind for kind in Kind}
    serving = _activities(cast(Deps, None), queues[routing.queue(ref.kind)])
    assert [name_of(function) for function in serving].count(ref.name) == 1, "see perdure/worker/queues.py"
