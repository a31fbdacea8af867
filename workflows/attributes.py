"""Search attributes in Temporal's own form."""

from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from contracts.turns import TurnInput
from contracts.workflows import search_values


def attributes(turn: TurnInput, status: str) -> TypedSearchAttributes:
    """Tenant, agent, conversation and status of a turn."""
    return TypedSearchAttributes(
        [
            SearchAttributePair(SearchAttributeKey.for_keyword(name), value)
            for name, value in search_values(turn, status).items()
        ]
    )
