"""The names by which clients reach workflows."""

from contracts.turns import TurnInput

TURN_RUN = "TurnRun"
TURN_WAIT = "TurnWait"
TOOL_PREVIEW = "ToolPreview"

RING = "ring"
"""Signal with a `Bell`: look again. Any number, any time, from anyone: it carries no verdict."""

SEARCH_TENANT = "PerdureTenant"
SEARCH_AGENT = "PerdureAgent"
SEARCH_CONVERSATION = "PerdureConversation"
SEARCH_STATUS = "PerdureStatus"


def search_values(turn: TurnInput, status: str) -> dict[str, str]:
    """What an operator filters turns by in the Temporal Web UI; set where a run begins, which costs no event."""
    return {
        SEARCH_TENANT: turn.address.tenant_id,
        SEARCH_AGENT: turn.agent_id,
        SEARCH_CONVERSATION: turn.address.conversation_id,
        SEARCH_STATUS: status,
    }
