"""The names by which clients reach a turn's workflow."""

TURN_RUN = "TurnRun"
TURN_WAIT = "TurnWait"

RING = "ring"
"""Signal with a `Bell`: look again. Any number, any time, from anyone: it carries no verdict."""

SEARCH_TENANT = "PerdureTenant"
SEARCH_AGENT = "PerdureAgent"
SEARCH_CONVERSATION = "PerdureConversation"
SEARCH_STATUS = "PerdureStatus"
