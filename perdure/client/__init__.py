"""The Python client of Perdure's API: idempotent starts, a resumable event stream, approvals.

```python
with Client("http://127.0.0.1:8080", token) as perdure:
    conversation = perdure.conversations.create("desk")
    turn = perdure.turns.start(conversation.id, "What is open?")
    for event in perdure.turns.events(turn.turn_id):
        ...
```
`AsyncClient` has the same names, to be awaited.
"""

from perdure.client.answers import (
    Agent,
    Answer,
    Approval,
    Budget,
    Budgets,
    Conversation,
    Effect,
    Message,
    Page,
    PromptVersion,
    Rule,
    Settled,
    Token,
    Topology,
    Turn,
    User,
)
from perdure.client.asynchronous import AsyncClient
from perdure.client.errors import ApiError
from perdure.client.sse import Event
from perdure.client.sync import Client

__all__ = [
    "Agent",
    "Answer",
    "ApiError",
    "Approval",
    "AsyncClient",
    "Budget",
    "Budgets",
    "Client",
    "Conversation",
    "Effect",
    "Event",
    "Message",
    "Page",
    "PromptVersion",
    "Rule",
    "Settled",
    "Token",
    "Topology",
    "Turn",
    "User",
]
