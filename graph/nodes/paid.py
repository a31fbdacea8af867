"""What a turn has paid for, counted on in its state."""

from typing import Protocol

from contracts.messages import Patch
from contracts.turns import Usage
from graph.nodes.reading import number_of
from graph.spec import State


class Paid(Protocol):
    """A reply, as far as it tells what it cost."""

    @property
    def usage(self) -> Usage:
        """Of the attempt that settled."""
        ...

    @property
    def turn_used(self) -> Usage | None:
        """Of the whole turn by then, where that is known."""
        ...


def paid(state: State, *replies: Paid) -> Patch:
    """The turn's counts after `replies`; what broke off is paid for too, and only a reply's `turn_used` tells of it."""
    known = [reply.turn_used or Usage() for reply in replies]
    tokens = number_of(state, "tokens_used") + sum(reply.usage.tokens for reply in replies)
    cost_microusd = number_of(state, "cost_microusd") + sum(reply.usage.cost_microusd for reply in replies)
    return {
        "tokens_used": max(tokens, *(used.tokens for used in known)),
        "cost_microusd": max(cost_microusd, *(used.cost_microusd for used in known)),
    }
