"""What a node or a router says of itself by its signature."""

import inspect
from enum import EnumMeta, StrEnum
from typing import Literal, get_args, get_origin, get_type_hints

from graph.spec import Router


def labels_of(router: Router) -> tuple[str, ...]:
    """The labels that a router declares to return; empty where its return type is open."""
    try:
        returned = get_type_hints(router if inspect.isfunction(router) else type(router).__call__).get("return")
    except NameError:
        return ()
    if get_origin(returned) is Literal:
        return tuple(str(label) for label in get_args(returned))
    if isinstance(returned, EnumMeta) and issubclass(returned, StrEnum):
        return tuple(label.value for label in returned)
    return ()


def is_async(called: object) -> bool:
    """Whether calling it gives a coroutine: an async function, or an object whose `__call__` is one."""
    return inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(type(called).__call__)


def is_frozen(node: object) -> bool:
    """Whether it is an instance of a frozen dataclass."""
    made_as = getattr(type(node), "__dataclass_params__", None)
    return made_as is not None and bool(made_as.frozen)
