"""What is wrong with a topology."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One broken rule."""

    rule: str
    """Stable, snake_case."""
    subject: str
    """The node, edge end, field or limit that breaks it; inside a nested topology as a path."""
    message: str
    """The rest of the sentence that begins with the subject."""

    def __str__(self) -> str:
        return f"{self.subject} {self.message} ({self.rule})"
