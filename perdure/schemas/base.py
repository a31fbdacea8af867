"""The base classes of all responses, typed as far as the contract defines them. Later fields are kept."""

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

Item = TypeVar("Item")


class Answer(BaseModel):
    """An immutable response. `model_dump` returns all of it, unknown fields included."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="allow", protected_namespaces=())


class Page(Answer, Generic[Item]):
    """A part of a list."""

    items: list[Item]
    next: str | None = None
    """The cursor of the next part."""
