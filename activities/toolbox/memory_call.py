"""One call of a memory tool: whose it is, and how it ends, with its usage rows and events."""

from collections.abc import Iterable, Sequence
from typing import cast
from uuid import UUID

from pydantic import JsonValue

from contracts.documents import MEMORY_POLICY_DENIED, MEMORY_SAFETY_FLAGGED, Use
from contracts.errors import CallerError
from contracts.events import MEMORY_WRITE_BLOCKED, MEMORY_WRITE_CREATED
from contracts.turns import TurnAddress
from perdure.tools import Audited, ToolContext, ToolRefused, ToolResult
from policy.documents.writing import POLICY_CODES, Writer
from store import documents_reading
from store.database import Connection
from store.documents import UNSAFE
from store.documents_reading import Document
from store.documents_usage import hold, note, tell
from store.documents_versions import Basis, Written
from store.journal import NewEvent

Told = tuple[str, dict[str, JsonValue]]
"""Kind and data of an event of the call."""


def transaction(context: ToolContext) -> Connection:
    """The transaction that the call commits in.

    Raises: ToolRefused where there is none, or memory is switched off.
    """
    if not context.memory.enabled:
        raise ToolRefused("document memory is switched off here")
    if context.transaction is None:
        raise ToolRefused("this tool needs the database and got none")
    return cast(Connection, context.transaction)  # the engine hands in its own connection


def writer_of(context: ToolContext) -> Writer:
    """The agent, for the user of its turn; it has none of the user's roles."""
    return Writer(context.user_id, is_agent=True)


def basis_of(context: ToolContext, evidence_summary: str, source_refs: Sequence[str]) -> Basis:
    """What a version rests on, and this call."""
    return Basis(evidence_summary, list(source_refs), context.turn_id, context.call_id)


async def document_of(context: ToolContext, document_id: str, *, lock: bool = False) -> Document:
    """The document as this turn may see it: those of other conversations are not there.

    Raises: CallerError 404 `document_not_found`.
    """
    if _is_id(document_id):
        found = await documents_reading.get(transaction(context), document_id, context.user_id, lock=lock)
        if found.conversation_id in (None, context.conversation_id):
            return found
    raise CallerError("document_not_found", "there is no such document", status=404)


def facts(document: Document) -> dict[str, JsonValue]:
    """What a model is told of a document beside its content."""
    return {
        **document.ref.model_dump(mode="json"),
        "scope": document.scope.value,
        "type": document.document_type,
        "title": document.title,
        "sha256": document.sha256,
    }


async def close(context: ToolContext, use: Use | None, versions: Iterable[str], events: Sequence[Told]) -> None:
    """The usage rows and events of the call: the last that it writes, under the turn's lock."""
    tx, address = transaction(context), _address(context)
    await hold(tx, context.turn_id)
    if use is not None:
        await note(tx, address, use, versions, context.call_id)
    await tell(tx, address, [NewEvent(kind, data, context.call_id) for kind, data in events])


async def created(context: ToolContext, written: Written) -> ToolResult:
    """The answer to a call that has written a version."""
    told: dict[str, JsonValue] = {
        **written.ref.model_dump(mode="json"),
        "scope": written.scope.value,
        "sha256": written.sha256,
        "number": written.number,
    }
    warnings: list[JsonValue] = [{**finding.as_data()} for finding in written.warnings]
    events: list[Told] = [(MEMORY_WRITE_CREATED, told)]
    if warnings:
        events.append((MEMORY_SAFETY_FLAGGED, {"blocked": False, "findings": warnings, **_where(told)}))
    await close(context, Use.WRITTEN, [written.ref.version_id], events)
    audited = Audited(written.ref.document_id, told)
    return ToolResult({"status": "written", **told, "warnings": warnings}, audited=audited)


async def blocked(context: ToolContext, error: CallerError, about: dict[str, JsonValue]) -> ToolResult:
    """The answer to a call that was refused: nothing is written but what tells of it.

    A path that may hold what must not be remembered is not told.
    """
    if error.code in (UNSAFE, "path_invalid"):
        about = {name: value for name, value in about.items() if name != "path"}
    events: list[Told] = []
    if error.code == UNSAFE:
        findings = cast(JsonValue, error.details.get("findings", []))
        events.append((MEMORY_SAFETY_FLAGGED, {"blocked": True, "findings": findings, **about}))
    kind = MEMORY_POLICY_DENIED if error.code in POLICY_CODES else MEMORY_WRITE_BLOCKED
    events.append((kind, {"code": error.code, **about}))
    await close(context, None, (), events)
    return told_no(error)


def told_no(error: CallerError) -> ToolResult:
    """A refusal in words for the model."""
    output: dict[str, JsonValue] = {"status": "refused", "code": error.code, "message": error.message}
    return ToolResult(output | {"details": cast(JsonValue, error.details)} if error.details else output)


def _is_id(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def _where(told: dict[str, JsonValue]) -> dict[str, JsonValue]:
    return {name: told[name] for name in ("document_id", "store", "path")}


def _address(context: ToolContext) -> TurnAddress:
    return TurnAddress(tenant_id=context.tenant_id, conversation_id=context.conversation_id, turn_id=context.turn_id)
