"""XML that a model wrote: parsed without entities, checked against a schema of ours, its faults told with their places.

No DTD is read and no entity expanded, so that a text of a few lines stays one. A text longer than the limit is refused
unread.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

MOST_CHARACTERS = 32_768
MOST_FAULTS = 12
_REASON_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class XmlFault:
    """One thing that is wrong."""

    path: str
    reason: str


@cache
def _schema(path: Path) -> Any:
    import xmlschema

    return xmlschema.XMLSchema10(str(path), defuse="always", allow="local")


def checked_xml(text: str, schema: Path) -> Element | tuple[XmlFault, ...]:
    """The root of a text that fits the schema, or what is wrong with it."""
    import xmlschema

    if len(text) > MOST_CHARACTERS:
        return (XmlFault("/", f"has {len(text)} characters; {MOST_CHARACTERS} are the most"),)
    if not text.lstrip().startswith("<"):
        return (XmlFault("/", "is not XML: it must begin with <"),)
    try:
        resource = xmlschema.XMLResource(text, defuse="always", allow="none")
    except (xmlschema.XMLSchemaException, ValueError, SyntaxError, RecursionError) as error:
        return (XmlFault("/", f"cannot be read: {str(error)[:_REASON_CHARACTERS]}"),)
    faults = []
    try:
        for found in _schema(schema).iter_errors(resource, max_depth=12):
            faults.append(XmlFault(found.path or "/", (found.reason or found.message)[:_REASON_CHARACTERS]))
            if len(faults) == MOST_FAULTS:
                break
    except (xmlschema.XMLSchemaException, RecursionError) as error:
        faults.append(XmlFault("/", f"cannot be checked: {str(error)[:_REASON_CHARACTERS]}"))
    root: Element = resource.root
    return tuple(faults) or root
