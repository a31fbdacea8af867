"""The access table of the API: who can call each operation of the OpenAPI document, and a request that would pass."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

OWNER, PEER, REVIEWER, ADMIN = "owner", "peer", "reviewer", "admin"
"""The callers of one tenant: the owner of the objects, another requester, a reviewer, and an administrator."""
ANYONE = frozenset({OWNER, PEER, REVIEWER, ADMIN})
MINE = frozenset({OWNER})
SEES = frozenset({OWNER, REVIEWER, ADMIN})
TENANT = frozenset({REVIEWER, ADMIN})
DECIDES = frozenset({REVIEWER})
ADMINS = frozenset({ADMIN})

Json = dict[str, object]
Body = Callable[[Mapping[str, str]], Json]


@dataclass(frozen=True, slots=True)
class Row:
    allowed: frozenset[str]
    body: Body | None = None
    """The JSON body that passes, from the ids of the objects."""
    query: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    """A body that is not JSON."""
    passes: frozenset[int] = frozenset({200, 201, 202, 204})
    """The statuses of an allowed call; 409 where a state that an earlier call left is in the way."""
    objects: str = ""
    """The group of objects that the path names, if not the main one; `group:caller` comes first."""
    named: bool = False
    """Whether the caller names the object, so that another tenant makes one of its own."""
    refused: frozenset[int] = frozenset({403, 404})
    """The statuses of a refused call; 422 where what is asked for means nothing without the role."""


def body(**given: object) -> Body:
    return lambda _ids: dict(given)


def _decision(ids: Mapping[str, str]) -> Json:
    return {"decision": "approve", "digest": ids["digest"]}


def _items(ids: Mapping[str, str]) -> Json:
    return {"items": [{"id": ids["approval_id"], "digest": ids["digest"], "decision": "reject", "comment": "no"}]}


_STORE = {"store": "workspace_runbooks"}
_DONE = frozenset({200, 201, 202, 204, 409})

TABLE: dict[str, Row] = {
    "POST /v1/conversations": Row(ANYONE, body(agent="refunds")),
    "GET /v1/conversations": Row(ANYONE),
    "GET /v1/conversations/{conversation_id}": Row(SEES),
    "PATCH /v1/conversations/{conversation_id}": Row(MINE, body(title="A title")),
    "DELETE /v1/conversations/{conversation_id}": Row(MINE, objects="idle"),
    "GET /v1/conversations/{conversation_id}/messages": Row(SEES),
    "GET /v1/conversations/{conversation_id}/story": Row(SEES),
    "POST /v1/conversations/{conversation_id}/turns": Row(MINE, body(message="/echo hi"), objects="ended"),
    "GET /v1/turns": Row(ANYONE),
    "GET /v1/turns/{turn_id}": Row(SEES),
    "GET /v1/turns/{turn_id}/calls": Row(SEES),
    "GET /v1/turns/{turn_id}/metrics": Row(SEES),
    "GET /v1/turns/{turn_id}/segments": Row(SEES),
    "POST /v1/turns/{turn_id}/stop": Row(SEES, objects="spare"),
    "GET /v1/turns/{turn_id}/answers/{request_id}": Row(SEES, objects="question"),
    "POST /v1/turns/{turn_id}/answers/{request_id}": Row(
        MINE, body(kind="clarification", payload={"text": "sales by region"}), objects="question"
    ),
    "POST /v1/turns/{turn_id}/limits": Row(
        TENANT, body(max_tokens=10**9), passes=_DONE, refused=frozenset({403, 404, 409})
    ),
    "POST /v1/execute": Row(ANYONE, body(agent="refunds", message="/echo hi")),
    "POST /v1/conversations/{conversation_id}/files": Row(MINE, raw=b"a,b\n1,2\n", query={"name": "t.csv"}),
    "GET /v1/conversations/{conversation_id}/files": Row(MINE),
    "GET /v1/files/{file_id}": Row(SEES),
    "DELETE /v1/files/{file_id}": Row(MINE, objects="deleted"),
    "GET /v1/usage": Row(ANYONE),
    "GET /v1/turns/{turn_id}/events": Row(SEES, objects="ended"),
    "GET /v1/conversations/{conversation_id}/stream": Row(SEES),
    "GET /v1/approvals": Row(ANYONE),
    "GET /v1/approvals/ageing": Row(ANYONE),
    "GET /v1/approvals/counts": Row(ANYONE),
    "GET /v1/approvals/decided": Row(ANYONE),
    "GET /v1/approvals/stream": Row(ANYONE),
    "GET /v1/approvals/{approval_id}": Row(SEES),
    "POST /v1/approvals/{approval_id}/decision": Row(DECIDES, _decision, objects="decided"),
    "POST /v1/approvals/{approval_id}/withdraw": Row(frozenset({OWNER, ADMIN}), body(), objects="spare", passes=_DONE),
    "POST /v1/approvals/{approval_id}/claim": Row(DECIDES, body()),
    "POST /v1/approvals/{approval_id}/release": Row(TENANT, body(), passes=_DONE),
    "POST /v1/approvals/{approval_id}/reassign": Row(TENANT, body(to="reviewer"), passes=_DONE),
    "POST /v1/approvals/{approval_id}/escalate": Row(TENANT, body(), objects="escalated", passes=_DONE),
    "POST /v1/approvals/decisions": Row(ANYONE, _items, objects="decided"),
    "POST /v1/approvals/{approval_id}/preview": Row(TENANT, body(), passes=_DONE),
    "POST /v1/delegations": Row(
        DECIDES, lambda ids: {"to": "second", "until": ids["until"]}, passes=_DONE, refused=frozenset({422})
    ),
    "GET /v1/delegations": Row(ANYONE),
    "DELETE /v1/delegations/{delegation_id}": Row(TENANT, objects="delegation"),
    "GET /v1/effects": Row(ANYONE),
    "GET /v1/effects/{effect_key}": Row(SEES),
    "POST /v1/effects/{effect_key}/settle": Row(TENANT, body(outcome="happened", comment="seen"), passes=_DONE),
    "GET /v1/audit/verify": Row(TENANT),
    "POST /v1/audit/verify": Row(TENANT, body(heads=[])),
    "GET /v1/audit/export": Row(ADMINS),
    "GET /v1/approvals/{approval_id}/audit": Row(SEES),
    "GET /v1/agents": Row(ANYONE),
    "GET /v1/agents/{agent_id}": Row(ANYONE),
    "GET /v1/agents/{agent_id}/tools": Row(ANYONE),
    "GET /v1/topologies": Row(ANYONE),
    "GET /v1/topologies/{name}.mmd": Row(ANYONE, objects="topology"),
    "GET /v1/topologies/{name}": Row(ANYONE, objects="topology"),
    "GET /v1/prompt-templates": Row(ANYONE),
    "GET /v1/prompt-templates/{template}": Row(MINE),
    "GET /v1/prompt-templates/{template}/render": Row(MINE),
    "PUT /v1/prompt-templates/{template}/draft": Row(ANYONE, body(text="Be brief."), named=True),
    "GET /v1/prompt-versions/{version_id}": Row(SEES, objects="prompt"),
    "POST /v1/prompt-versions/{version_id}/promote": Row(
        TENANT, lambda ids: {"to": "pre_production", "digest": ids["prompt_digest"]}, objects="prompt", passes=_DONE
    ),
    "POST /v1/prompt-versions/{version_id}/archive": Row(SEES, body(), objects="archived", passes=_DONE),
    "GET /v1/budgets": Row(ADMINS),
    "PUT /v1/budgets": Row(ADMINS, body(max_tokens=None, max_cost_usd=None)),
    "GET /v1/memory/working/{conversation_id}": Row(MINE),
    "PUT /v1/memory/working/{conversation_id}": Row(MINE, body(fields={"a": 1})),
    "DELETE /v1/memory/working/{conversation_id}": Row(MINE),
    "POST /v1/memory/episodic": Row(
        MINE, lambda ids: {"conversation_id": ids["conversation_id"], "summary": "They asked for a refund."}
    ),
    "GET /v1/memory/episodic": Row(MINE, query={"conversation_id": "conversation_id"}),
    "POST /v1/memory/episodic/search": Row(ANYONE, body(agent="refunds", query="refund")),
    "GET /v1/memory/stores": Row(ANYONE),
    "PUT /v1/memory/stores/{slug}": Row(ADMINS, body(archived=False), named=True),
    "GET /v1/memory/documents": Row(ANYONE),
    "POST /v1/memory/documents": Row(
        ADMINS, body(scope="workspace", path="notes/new.md", type="runbook", title="T", content="C", **_STORE)
    ),
    "POST /v1/memory/documents/search": Row(ANYONE, body(query="refund")),
    "GET /v1/memory/documents/{document_id}": Row(MINE),
    "PUT /v1/memory/documents/{document_id}": Row(
        MINE, lambda ids: {"expected_sha256": ids["document_sha256"], "content": "New."}, passes=_DONE
    ),
    "PATCH /v1/memory/documents/{document_id}": Row(
        MINE,
        lambda ids: {"expected_sha256": ids["document_sha256"], "edits": [{"find": "Old", "replace": "New"}]},
        passes=_DONE,
    ),
    "DELETE /v1/memory/documents/{document_id}": Row(ADMINS, objects="shared"),
    "GET /v1/memory/documents/{document_id}/versions": Row(MINE),
    "GET /v1/memory/documents/{document_id}/versions/{version_id}": Row(MINE),
    "POST /v1/memory/documents/{document_id}/versions/{version_id}/redact": Row(
        ADMINS, body(reason="a secret"), objects="redacted"
    ),
    "POST /v1/memory/promotions": Row(
        MINE,
        lambda ids: {"document_id": ids["document_id"], "path": "notes/own.md", "risk": "low", **_STORE},
        passes=_DONE,
    ),
    "GET /v1/memory/promotions": Row(ANYONE),
    "GET /v1/memory/promotions/{promotion_id}": Row(frozenset({OWNER, ADMIN})),
    "POST /v1/memory/promotions/{promotion_id}/decision": Row(
        ADMINS, lambda ids: {"decision": "reject", "sha256": ids["document_sha256"], "comment": "no"}, passes=_DONE
    ),
    "GET /v1/rules": Row(ANYONE),
    "PUT /v1/rules": Row(ADMINS, lambda ids: {"rule": ids["rule"], "do": "abort"}),
    "GET /v1/rules/tools": Row(ANYONE),
    "PUT /v1/rules/tools": Row(ADMINS, body(tool="memory_patch", approval=True)),
    "GET /v1/entities": Row(ANYONE, query={"name": "a thing"}),
    "GET /v1/entities/{entity_id}": Row(ANYONE),
    "POST /v1/auth/codes": Row(frozenset(), body()),
    "POST /v1/auth/logout": Row(ANYONE, body(), passes=frozenset({200, 409})),
    "GET /v1/auth/me": Row(ANYONE),
    "PATCH /v1/auth/me": Row(ANYONE, body(display_name="A name")),
    "POST /v1/auth/password": Row(ANYONE, body(password="three unlikely words"), passes=_DONE),
    "GET /v1/team": Row(ADMINS),
    "POST /v1/team/invitations": Row(ADMINS, body(name="newcomer")),
    "POST /v1/team/{name}/invitation": Row(ADMINS, body(), objects="member"),
    "PATCH /v1/team/{name}": Row(ADMINS, body(display_name="Another"), objects="member"),
    "DELETE /v1/team/{name}": Row(ADMINS, objects="member"),
    "GET /v1/users": Row(ADMINS),
    "POST /v1/users": Row(ADMINS, body(name="another")),
    "POST /v1/users/{name}/roles": Row(ADMINS, body(roles=["requester"]), objects="member"),
    "DELETE /v1/users/{name}/data": Row(ADMINS, objects="member"),
    "POST /v1/users/{name}/tokens": Row(ADMINS, body(), objects="leaver"),
    "GET /v1/webhooks": Row(ADMINS),
    "POST /v1/webhooks": Row(ADMINS, body(url="https://hooks.example.org/x")),
    "DELETE /v1/webhooks/{webhook_id}": Row(ADMINS),
    "GET /v1/status": Row(TENANT),
    "GET /metrics": Row(frozenset()),
}
OPEN = {f"POST /v1/auth/{each}": 422 for each in ("register", "login", "refresh")}
OPEN |= {"GET /healthz": 200, "GET /readyz": 200, "GET /v1/auth/ways": 200}
"""The operations without a token, and what an empty body is answered."""
