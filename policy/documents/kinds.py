"""The types of documents, and how much each counts in a ranking (S2-10)."""

from collections.abc import Mapping
from types import MappingProxyType

_BOOSTS = """
runbook 0.90
verification_checklist 0.85
incident_lesson 0.80
workspace_convention 0.75
service_context 0.70
tool_usage_lesson 0.65
user_preference 0.50
dream_summary 0.40
conversation_note 0.30
"""
"""Kept as a table: the names are the requirement's, and no other name in the code is made of them."""

TYPE_BOOSTS: Mapping[str, float] = MappingProxyType(
    {name: float(boost) for name, boost in (line.split() for line in _BOOSTS.split("\n") if line)}
)
DOCUMENT_TYPES = tuple(TYPE_BOOSTS)
USER_PREFERENCE = "user_preference"
CONVERSATION_NOTE = "conversation_note"


def type_fault(document_type: str) -> str | None:
    """Why this is no type of a document."""
    if document_type in TYPE_BOOSTS:
        return None
    return f"{document_type[:60]!r} is no type of document; it is one of {', '.join(DOCUMENT_TYPES)}"
