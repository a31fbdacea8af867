"""What a turn has paid for, counted on in its state."""

from contracts.messages import Patch
from contracts.model import ModelReply
from contracts.turns import Usage
from graph.nodes.reading import number_of
from graph.spec import State


def paid(state: State, *replies: ModelReply) -> Patch:
    """The turn's counts after `replies`; what broke off is paid for too, and only a reply's `turn_used` tells of it."""
    known = [reply.turn_used or Usage() for reply in replies]
    tokens = number_of(state, "tokens_used") + sum(reply.usage.tokens for reply in replies)
    cost_microusd = number_of(state, "cost_microusd") + sum(reply.usage.cost_microusd for reply in replies)
    return {
        "tokens_used": max(tokens, *(used.tokens for used in known)),
        "cost_microusd": max(cost_microusd, *(used.cost_microusd for used in known)),
    }
