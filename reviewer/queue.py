"""How a person has narrowed the list: kept in the address of whatever is opened from it, so that the next one is of the
same list, and so is the way back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

from reviewer.forms import Form
from reviewer.visit import Visit

DAY_SECONDS = 86_400
KINDS = ("risk", "agent", "tool", "role")
_LONGEST_NAME = 64
_LONGEST = 600


@dataclass(frozen=True, slots=True)
class Asked:
    """How the list is narrowed."""

    mine: bool = True
    risk: str = ""
    agent: str = ""
    tool: str = ""
    role: str = ""
    expiring: bool = False

    def query(self, *, mine: bool, cursor: str | None = None) -> str:
        """The same for an address, and whose."""
        named = {kind: getattr(self, kind) for kind in KINDS}
        said = {**({} if mine else {"all": "1"}), **named, **({"expiring": "1"} if self.expiring else {})}
        return urlencode({name: value for name, value in {**said, "cursor": cursor or ""}.items() if value})

    def path(self, *, mine: bool, cursor: str | None = None) -> str:
        """The inbox narrowed so, and whose."""
        text = self.query(mine=mine, cursor=cursor)
        return "/review" + (f"?{text}" if text else "")

    @property
    def within(self) -> str:
        """What the address of an approval says of the list that it was opened from."""
        text = self.query(mine=self.mine)
        return "?" + urlencode({"in": text}) if text else ""

    @property
    def narrowed(self) -> bool:
        """By more than whose."""
        return self.expiring or any(getattr(self, kind) for kind in KINDS)

    @property
    def filters(self) -> Mapping[str, Any]:
        """As the API takes it."""
        named = {kind: getattr(self, kind) or None for kind in KINDS}
        return {**named, "mine": self.mine or None, "expiring_seconds": DAY_SECONDS if self.expiring else None}


def opened_from(visit: Visit, form: Form | None = None) -> Asked:
    """The list that an approval was opened from, as its address says, or the form that was sent from its page."""
    text = (form.get("in") if form else "") or visit.request.query_params.get("in", "")
    said = dict(parse_qsl(text)) if len(text) <= _LONGEST else {}
    risk, agent, tool, role = (said.get(kind, "")[:_LONGEST_NAME] for kind in KINDS)
    return Asked("all" not in said, risk, agent, tool, role, "expiring" in said)
