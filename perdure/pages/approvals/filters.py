"""The filters of the inbox, which the addresses of the approvals opened from it contain."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

from perdure.pages.request import BrowserRequest, Form

DAY_SECONDS = 86_400
FILTER_NAMES = ("risk", "agent", "tool", "role")
_MAX_NAME_CHARACTERS = 64
_MAX_QUERY_CHARACTERS = 600


@dataclass(frozen=True, slots=True)
class InboxFilters:
    """Filters of the list. The address of each approval that is opened from the list contains them. The next approval
    and the way back then belong to the same list."""

    mine: bool = True
    risk: str = ""
    agent: str = ""
    tool: str = ""
    role: str = ""
    expiring: bool = False
    outdated: bool = False

    def query(self, *, mine: bool, cursor: str | None = None) -> str:
        """Returns the filters as a query string, with this `mine`."""
        selected = {kind: getattr(self, kind) for kind in FILTER_NAMES}
        marked = {name: "1" for name in ("expiring", "outdated") if getattr(self, name)}
        parameters = {**({} if mine else {"all": "1"}), **selected, **marked}
        return urlencode({name: value for name, value in {**parameters, "cursor": cursor or ""}.items() if value})

    def path(self, *, mine: bool, cursor: str | None = None) -> str:
        """Returns the address of the inbox with these filters and this `mine`."""
        text = self.query(mine=mine, cursor=cursor)
        return "/review" + (f"?{text}" if text else "")

    @property
    def list_query(self) -> str:
        """The query string of an approval's address, which contains the filters of its list."""
        text = self.query(mine=self.mine)
        return "?" + urlencode({"in": text}) if text else ""

    @property
    def is_narrowed(self) -> bool:
        """True if a filter besides `mine` is set."""
        return self.expiring or self.outdated or any(getattr(self, kind) for kind in FILTER_NAMES)

    @property
    def api_parameters(self) -> Mapping[str, Any]:
        """The filters as parameters of the API."""
        selected = {kind: getattr(self, kind) or None for kind in FILTER_NAMES}
        return {
            **selected,
            "status": "outdated" if self.outdated else "pending",
            "mine": self.mine or None,
            "expiring_seconds": DAY_SECONDS if self.expiring else None,
        }


def filters_of_visit(visit: BrowserRequest, form: Form | None = None) -> InboxFilters:
    """Returns the list that an approval was opened from, read from the form of its page or from its address."""
    text = (form.get("in") if form else "") or visit.request.query_params.get("in", "")
    parameters = dict(parse_qsl(text)) if len(text) <= _MAX_QUERY_CHARACTERS else {}
    risk, agent, tool, role = (parameters.get(kind, "")[:_MAX_NAME_CHARACTERS] for kind in FILTER_NAMES)
    return InboxFilters(
        "all" not in parameters, risk, agent, tool, role, "expiring" in parameters, "outdated" in parameters
    )
