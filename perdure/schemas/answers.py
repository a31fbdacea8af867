"""What every answer of the API is: typed as far as the contract goes, and whole. Fields added later are kept."""

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

Item = TypeVar("Item")


class Answer(BaseModel):
    """An immutable answer; `model_dump` gives all of it back, unknown fields included."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="allow", protected_namespaces=())


class Page(Answer, Generic[Item]):
    """A part of a list."""

    items: list[Item]
    next: str | None = None
    """The cursor of the part that follows."""
