"""The mailbox of a turn: bells that rang, and whether a stop was asked. It rides through every continue-as-new."""

from collections.abc import Callable

from contracts.turns import Bell, Carried

STOP = "stop"
MOST_BELLS = 100
"""More bells say nothing new: each only means "look again"."""


class Mailbox:
    """Filled by sync signal handlers, which only append."""

    def __init__(self, carried: Carried | None) -> None:
        self.bells: list[Bell] = list(carried.mailbox) if carried else []
        self.stop = carried.stop if carried else False
        self._on_stop: Callable[[], None] | None = None

    def put(self, bell: Bell) -> None:
        """Take a bell; anyone may ring, any number of times."""
        if bell.kind == STOP:
            self.stop = True
            if self._on_stop is not None:
                self._on_stop()
        elif len(self.bells) < MOST_BELLS:
            self.bells.append(bell)

    def when_stopped(self, act: Callable[[], None]) -> None:
        """What a stop does at once to the run that is under way."""
        self._on_stop = act

    def looked(self) -> None:
        """The records were read after these bells: they have done their work."""
        self.bells.clear()
