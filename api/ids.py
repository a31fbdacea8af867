"""Ids in paths: what is no UUID names nothing, so it is 404."""

from typing import Annotated
from uuid import UUID

from fastapi import Depends, Path

from contracts.errors import CallerError


def as_uuid(text: str, what: str) -> str:
    """`text` as a canonical UUID.

    Raises: CallerError 404.
    """
    try:
        return str(UUID(text))
    except ValueError:
        raise CallerError(f"{what}_not_found", f"there is no such {what}", status=404) from None


def _conversation(conversation_id: Annotated[str, Path()]) -> str:
    return as_uuid(conversation_id, "conversation")


def _turn(turn_id: Annotated[str, Path()]) -> str:
    return as_uuid(turn_id, "turn")


def _approval(approval_id: Annotated[str, Path()]) -> str:
    return as_uuid(approval_id, "approval")


def _question(request_id: Annotated[str, Path()]) -> str:
    return as_uuid(request_id, "question")


def _file(file_id: Annotated[str, Path()]) -> str:
    return as_uuid(file_id, "file")


def _entity(entity_id: Annotated[str, Path()]) -> str:
    return as_uuid(entity_id, "entity")


ConversationId = Annotated[str, Depends(_conversation)]
TurnId = Annotated[str, Depends(_turn)]
ApprovalId = Annotated[str, Depends(_approval)]
QuestionId = Annotated[str, Depends(_question)]
FileId = Annotated[str, Depends(_file)]
EntityId = Annotated[str, Depends(_entity)]
