"""A value of a YAML file against the form that it must have: every mistake with its line, not only the first."""

from collections.abc import Collection, Iterator, Mapping
from math import isfinite
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from perdure.apps.problems import AppProblem, did_you_mean
from perdure.apps.yaml_file import Place, YamlFile
from policy.text import is_clean

Form = TypeVar("Form", bound=BaseModel)
_MOST_DEPTH = 64


def read_form(
    model: type[Form], value: object, file: YamlFile, place: Place = ()
) -> tuple[Form | None, list[AppProblem]]:
    """`value`, which stands at `place` of `file`, as a `model`; None where anything is wrong with it."""
    if not isinstance(value, dict):
        return None, [file.problem(place, "must be a list of fields with their values")]
    unfit = dict(unstorable(value, place))
    problems = [unfit_problem(file, each, why) for each, why in unfit.items()]
    problems += unknown_fields(model, value, file, place)
    try:
        read = model.model_validate(value)
    except ValidationError as error:
        return None, problems + told(error, file, place, unfit)
    return (None, problems) if problems else (read, [])


def unknown_fields(
    model: type[BaseModel], value: Mapping[str, Any], file: YamlFile, place: Place = ()
) -> list[AppProblem]:
    """Fields of `value`, at any depth, that `model` has not: also where the model itself would let them pass."""
    problems = []
    for name, inner in value.items():
        if name not in model.model_fields:
            problems.append(
                file.problem((*place, name), f"unknown field {name!r}{did_you_mean(name, model.model_fields)}")
            )
            continue
        nested = _model_in(model.model_fields[name].annotation)
        if nested is None:
            continue
        several = enumerate(inner) if isinstance(inner, list) else [(None, inner)]
        for index, each in several:
            if isinstance(each, dict):
                here = (*place, name) if index is None else (*place, name, index)
                problems += unknown_fields(nested, each, file, here)
    return problems


def told(
    error: ValidationError, file: YamlFile, place: Place, but: Collection[Place] = (), unknown: bool = False
) -> list[AppProblem]:
    """What pydantic found, each with its line, except at the places in `but`; unknown fields, which `unknown_fields`
    tells better, only where asked for."""
    problems = []
    for each in error.errors(include_url=False, include_input=False):
        where = (*place, *each["loc"])
        if where not in but and (unknown or each["type"] != "extra_forbidden"):
            name = ".".join(map(str, each["loc"]))
            problems.append(file.problem(where, f"{name}: {each['msg']}" if name else each["msg"]))
    return problems


def unfit_problem(file: YamlFile, place: Place, why: str) -> AppProblem:
    """A value that cannot be stored."""
    return file.problem(place, f"{'.'.join(map(str, place)) or 'this'} {why}")


def unstorable(value: object, place: Place = ()) -> Iterator[tuple[Place, str]]:
    """The places of what jsonb cannot hold, and why."""
    if len(place) > _MOST_DEPTH:
        yield place, f"is nested deeper than {_MOST_DEPTH} levels"
    elif isinstance(value, dict):
        for name, inner in value.items():
            if not isinstance(name, str) or not is_clean(name):
                yield place, f"has the name {name!r}, which holds a NUL or half a character and cannot be stored"
            yield from unstorable(inner, (*place, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from unstorable(inner, (*place, index))
    elif isinstance(value, str):
        if not is_clean(value):
            yield place, "holds a NUL or half a character, which cannot be stored"
    elif isinstance(value, float):
        if not isfinite(value):
            yield place, "is a number that is not finite, which cannot be stored"
    elif value is not None and not isinstance(value, bool | int):
        yield place, f"is a {type(value).__name__}, which JSON does not have; put it in quotes"


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model in an annotation: itself, or that of an optional value or of a tuple's items."""
    if get_origin(annotation) in (Union, UnionType, tuple):
        return next(filter(None, map(_model_in, get_args(annotation))), None)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
