"""The Python client of Perdure's API: idempotent starts, a resumable event stream, approvals.

```python
with Client("http://127.0.0.1:8080", token) as perdure:
    conversation = perdure.conversations.create("desk")
    turn = perdure.turns.start(conversation.id, "What is open?")
    for event in perdure.turns.events(turn.turn_id):
        ...
```
`AsyncClient` has the same names, as coroutines.
"""

from perdure.client.asynchronous import AsyncClient
from perdure.client.connection import Event
from perdure.client.requests import ApiError
from perdure.client.sync import Client
from perdure.client.turns import OnBehalfOf
from perdure.schemas.agents import (
    Agent,
    AgentTool,
    Budget,
    Budgets,
    ExemptibleTool,
    FourEyes,
    PromptVersion,
    Rule,
    Token,
    Topology,
    User,
)
from perdure.schemas.approvals import (
    Ageing,
    Approval,
    AuditEntry,
    Counts,
    Delegation,
    Fallback,
    ItemAnswer,
    OwnDecision,
    Vote,
    signed_in_words,
)
from perdure.schemas.base import Answer, Page
from perdure.schemas.calls import Effect, Settled
from perdure.schemas.delivery import Webhook
from perdure.schemas.identity import Invitation, Me, Member, Registered, SignInCode, Ways
from perdure.schemas.status import DeploymentStatus
from perdure.schemas.turns import (
    Conversation,
    ConversationTurn,
    ConversationView,
    File,
    Message,
    Metrics,
    ModelUse,
    Question,
    Segment,
    TranscriptMessage,
    Turn,
    TurnCall,
)

__all__ = [
    "Ageing",
    "Agent",
    "AgentTool",
    "Answer",
    "ApiError",
    "Approval",
    "AsyncClient",
    "AuditEntry",
    "Budget",
    "Budgets",
    "Client",
    "Conversation",
    "ConversationTurn",
    "ConversationView",
    "Counts",
    "Delegation",
    "DeploymentStatus",
    "Effect",
    "Event",
    "ExemptibleTool",
    "Fallback",
    "File",
    "FourEyes",
    "Invitation",
    "ItemAnswer",
    "Me",
    "Member",
    "Message",
    "Metrics",
    "ModelUse",
    "OnBehalfOf",
    "OwnDecision",
    "Page",
    "PromptVersion",
    "Question",
    "Registered",
    "Rule",
    "Segment",
    "Settled",
    "SignInCode",
    "Token",
    "Topology",
    "TranscriptMessage",
    "Turn",
    "TurnCall",
    "User",
    "Vote",
    "Ways",
    "Webhook",
    "signed_in_words",
]
