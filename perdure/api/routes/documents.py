"""Documents of memory: a user's own, those of the user's conversations, and those of the workspace.

Only the user can read their own documents: reviewers and administrators also get 404. Administrators can delete and
redact them by id, but cannot read their texts.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response
from fastapi.responses import JSONResponse

from perdure.api.auth import Caller, DecidingCaller, Principal, ServicesDep, SubjectCaller
from perdure.api.idempotency import Key, run_once
from perdure.api.request_bodies import Cursor, Limit, as_uuid
from perdure.api.routes.memory_bodies import (
    MAX_HITS,
    DocumentSearchBody,
    NewDocument,
    PatchBody,
    PromotionDecisionBody,
    ProposalBody,
    RedactionBody,
    StoreBody,
    UpdateBody,
)
from perdure.api.services import Services
from perdure.contracts.memory import Scope
from perdure.core.memory.documents import ADMIN, Edit, PromotionState, Writer
from perdure.store import budgets
from perdure.store.database import Connection
from perdure.store.delivery.outbox import Note
from perdure.store.memory import documents
from perdure.store.memory import promotions as documents_promotions
from perdure.store.memory import search as documents_reading
from perdure.store.memory.documents import Draft, WrittenVersion
from perdure.store.memory.promotions import Target
from perdure.store.memory.search import Question, add_excerpts, search

documents_router = APIRouter(prefix="/v1/memory", tags=["memory"])
MAX_LISTED = 200


def _document_id(document_id: Annotated[str, Path(description="Id of the document")]) -> str:
    return as_uuid(document_id, "document")


def _version_id(version_id: Annotated[str, Path(description="Id of the version")]) -> str:
    return as_uuid(version_id, "version")


DocumentId = Annotated[str, Depends(_document_id)]
VersionId = Annotated[str, Depends(_version_id)]


@documents_router.get("/stores")
async def stores(services: ServicesDep, caller: Caller) -> dict[str, object]:
    """Lists the document stores of the tenant."""
    async with services.db.transaction(caller.tenant_id) as tx:
        return {"items": await documents.list_stores(tx), "next": None}


@documents_router.put("/stores/{slug}")
async def archive(
    services: ServicesDep,
    caller: Caller,
    slug: Annotated[str, Path(max_length=64, description="Name of the store")],
    body: StoreBody,
) -> dict[str, object]:
    """Archives or reopens a store. Requires the role admin."""
    caller.require_role(ADMIN)
    async with services.db.transaction(caller.tenant_id) as tx:
        return await documents.set_store_archived(tx, slug, body.archived, caller.user_id)


@documents_router.get("/documents")
async def list_documents(
    services: ServicesDep,
    caller: SubjectCaller,
    scope: Annotated[Scope | None, Query(description="Only documents of this scope")] = None,
    conversation_id: Annotated[str | None, Query(max_length=100, description="Also those of this conversation")] = None,
    prefix: Annotated[str, Query(max_length=200, description="Only documents whose path begins so")] = "",
    limit: Limit = 50,
    cursor: Cursor = None,
) -> dict[str, object]:
    """Lists documents without their texts, most recently changed first; with `conversation_id`, those of one
    conversation."""
    conversation_uuid = as_uuid(conversation_id, "conversation") if conversation_id else None
    async with services.db.transaction(caller.tenant_id) as tx:
        items, following = await documents_reading.list_documents(
            tx,
            caller.user_id,
            min(limit, MAX_LISTED),
            cursor,
            scope=scope,
            conversation_id=conversation_uuid,
            prefix=prefix,
        )
    return {"items": [document.shown() for document in items], "next": following}


@documents_router.post("/documents", status_code=201)
async def create(services: ServicesDep, caller: SubjectCaller, body: NewDocument, key: Key = None) -> JSONResponse:
    """Creates a document. The workspace scope requires the role admin."""
    conversation_id = as_uuid(body.conversation_id, "conversation") if body.conversation_id else None
    draft = Draft(
        body.scope, body.path, body.type, body.title, body.content, body.store, conversation_id, body.entities
    )

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        version = await documents.create_document(tx, writer_of(caller), draft, body.basis(), services.memory)
        await _check_quota(services, tx, caller, version)
        return 201, _version_body(version), None

    return await run_once(services, caller, "memory/documents", key, body, work)


@documents_router.post("/documents/search")
async def find(services: ServicesDep, caller: SubjectCaller, body: DocumentSearchBody) -> dict[str, object]:
    """Searches documents. Returns the best matches with an escaped excerpt and a score, best first."""
    conversation_uuid = as_uuid(body.conversation_id, "conversation") if body.conversation_id else None
    question = Question(body.query, caller.user_id, conversation_uuid, body.scope)
    async with services.db.transaction(caller.tenant_id) as tx:
        hits = await search(tx, question, min(body.limit, MAX_HITS))
        texts = {hit.ref.version_id: hit.excerpt for hit in await add_excerpts(tx, question, hits)}
    items = [
        {
            **hit.ref.model_dump(mode="json"),
            "type": hit.signals.document_type,
            "title": hit.title,
            "score": round(hit.score, 4),
            "excerpt": texts.get(hit.ref.version_id, ""),
        }
        for hit in hits
    ]
    return {"items": items, "next": None}


@documents_router.get("/documents/{document_id}")
async def get_document(services: ServicesDep, caller: SubjectCaller, document_id: DocumentId) -> dict[str, object]:
    """Returns a document with its text. The text is null if the version was redacted."""
    async with services.db.transaction(caller.tenant_id) as tx:
        document = await documents_reading.get_document(tx, document_id, caller.user_id)
    return document.shown() | {"content": document.content}


@documents_router.put("/documents/{document_id}")
async def update(
    services: ServicesDep, caller: SubjectCaller, document_id: DocumentId, body: UpdateBody
) -> dict[str, object]:
    """Adds a version with this text. Returns 409 `memory_conflict` if the document changed since you read it."""
    async with services.db.transaction(caller.tenant_id) as tx:
        document = await documents_reading.get_document(tx, document_id, caller.user_id, lock=True)
        version = await documents.update_document(
            tx,
            writer_of(caller),
            document,
            body.expected_sha256,
            body.content,
            body.basis(),
            title=body.title,
            entities=body.entities,
            limits=services.memory,
        )
        await _check_quota(services, tx, caller, version)
    return _version_body(version)


@documents_router.patch("/documents/{document_id}")
async def patch(
    services: ServicesDep, caller: SubjectCaller, document_id: DocumentId, body: PatchBody
) -> dict[str, object]:
    """Adds a version with these replacements. Returns 409 `memory_conflict` if the document changed since you read
    it."""
    edits = [Edit(edit.find, edit.replace) for edit in body.edits]
    async with services.db.transaction(caller.tenant_id) as tx:
        document = await documents_reading.get_document(tx, document_id, caller.user_id, lock=True)
        version = await documents.update_document(
            tx, writer_of(caller), document, body.expected_sha256, edits, body.basis(), limits=services.memory
        )
        await _check_quota(services, tx, caller, version)
    return _version_body(version)


@documents_router.delete("/documents/{document_id}", status_code=204)
async def delete(services: ServicesDep, caller: SubjectCaller, document_id: DocumentId) -> Response:
    """Deletes a document; its versions are kept. Requires the role admin."""
    caller.require_role(ADMIN)
    async with services.db.transaction(caller.tenant_id) as tx:
        await documents.delete_document(tx, document_id, caller.user_id)
    return Response(status_code=204)


@documents_router.get("/documents/{document_id}/versions")
async def versions(
    services: ServicesDep, caller: SubjectCaller, document_id: DocumentId, limit: Limit = 50
) -> dict[str, object]:
    """Lists the versions of a document without their texts, newest first."""
    async with services.db.transaction(caller.tenant_id) as tx:
        document = await documents_reading.get_document(tx, document_id, caller.user_id)
        return {"items": await documents_reading.document_history(tx, document, min(limit, MAX_LISTED)), "next": None}


@documents_router.get("/documents/{document_id}/versions/{version_id}")
async def version(
    services: ServicesDep, caller: SubjectCaller, document_id: DocumentId, version_id: VersionId
) -> dict[str, object]:
    """Returns one version with its text."""
    async with services.db.transaction(caller.tenant_id) as tx:
        document = await documents_reading.get_document(tx, document_id, caller.user_id)
        return await documents_reading.document_version(tx, document, version_id)


@documents_router.post("/documents/{document_id}/versions/{version_id}/redact")
async def redact(
    services: ServicesDep,
    caller: Caller,
    document_id: DocumentId,
    version_id: VersionId,
    body: RedactionBody,
    key: Key = None,
) -> JSONResponse:
    """Permanently removes the text of one version. Requires the role admin and a reason."""
    caller.require_role(ADMIN)

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        return 200, await documents.redact_version(tx, document_id, version_id, body.reason, caller.user_id), None

    return await run_once(services, caller, f"memory-redact/{version_id}", key, body, work)


def writer_of(caller: Principal) -> Writer:
    """Returns the user as a writer of documents, with the user's roles."""
    return Writer(caller.user_id, caller.roles, credential=caller.credential)


async def _check_quota(services: Services, tx: Connection, caller: Principal, version: WrittenVersion) -> None:
    """Raises: CallerError 429 `quota_reached`. Documents of the workspace count only for the tenant's quota."""
    owner_id = None if version.scope is Scope.WORKSPACE else caller.user_id
    await budgets.check_room(tx, services.caps.quotas, owner_id, written_bytes=version.size_bytes)


def _version_body(version: WrittenVersion) -> dict[str, object]:
    return {
        "id": version.ref.document_id,
        "version_id": version.ref.version_id,
        "store": version.ref.store,
        "scope": version.scope.value,
        "path": version.ref.path,
        "trust": version.ref.trust.value,
        "sha256": version.sha256,
        "number": version.number,
        "warnings": [finding.as_data() for finding in version.warnings],
    }


promotions_router = APIRouter(prefix="/v1/memory/promotions", tags=["memory"])


def _promotion_id(promotion_id: Annotated[str, Path(description="Id of the proposal")]) -> str:
    return as_uuid(promotion_id, "promotion")


PromotionId = Annotated[str, Depends(_promotion_id)]


@promotions_router.post("", status_code=201)
async def propose(services: ServicesDep, caller: SubjectCaller, body: ProposalBody, key: Key = None) -> JSONResponse:
    """Proposes a document for shared memory. Nothing changes until an administrator approves it."""
    document_id = as_uuid(body.document_id, "document")
    target = Target(body.store, body.path, body.risk)

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        source = await documents_reading.get_document(tx, document_id, caller.user_id)
        promotion = await documents_promotions.propose(
            tx, writer_of(caller), source, target, body.basis(), services.memory
        )
        size_bytes = len((source.content or "").encode())
        await budgets.check_room(tx, services.caps.quotas, caller.user_id, written_bytes=size_bytes)
        # The response is stored under its key for a day, so it omits the text, which can be redacted in its document.
        return 201, {name: value for name, value in promotion.items() if name != "content"}, None

    return await run_once(services, caller, "memory/promotions", key, body, work)


@promotions_router.get("")
async def list_promotions(
    services: ServicesDep,
    caller: SubjectCaller,
    status: Annotated[PromotionState | None, Query(description="Only proposals in this state")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> dict[str, object]:
    """Lists promotions without their texts, newest first: yours, or all of them for an administrator."""
    async with services.db.transaction(caller.tenant_id) as tx:
        items, following = await documents_promotions.list_promotions(
            tx, _proposer_filter(caller), status, min(limit, MAX_LISTED), cursor
        )
    return {"items": items, "next": following}


@promotions_router.get("/{promotion_id}")
async def get_promotion(services: ServicesDep, caller: SubjectCaller, promotion_id: PromotionId) -> dict[str, object]:
    """Returns one promotion with the proposed text."""
    async with services.db.transaction(caller.tenant_id) as tx:
        return await documents_promotions.get_promotion(tx, promotion_id, _proposer_filter(caller))


@promotions_router.post("/{promotion_id}/decision")
async def decide(
    services: ServicesDep,
    caller: DecidingCaller,
    promotion_id: PromotionId,
    body: PromotionDecisionBody,
    key: Key = None,
) -> JSONResponse:
    """Approves or rejects a promotion once; `digest` is that of the text that you read. Requires the role admin; the
    proposer cannot decide."""

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        await documents_promotions.get_promotion(tx, promotion_id, _proposer_filter(caller))
        decided = await documents_promotions.decide(
            tx, promotion_id, writer_of(caller), body.decision, body.sha256, body.comment, services.memory
        )
        return 200, {name: value for name, value in decided.items() if name != "content"}, None

    return await run_once(services, caller, f"memory-promotion/{promotion_id}", key, body, work)


def _proposer_filter(caller: Principal) -> str | None:
    return None if ADMIN in caller.roles else caller.user_id
