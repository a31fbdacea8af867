"""What a person is told where a page cannot be shown: in words, with a way on, and never with an inside of ours."""

from dataclasses import dataclass

from perdure.client import ApiError

TITLES = {
    400: "That cannot be read",
    401: "Please sign in",
    403: "This is not yours to do",
    404: "There is nothing here",
    405: "That is not how this page is used",
    408: "That took too long",
    409: "It has changed meanwhile",
    410: "Too late",
    411: "That cannot be read",
    413: "That is too much at once",
    415: "That cannot be read",
    422: "That does not fit",
    429: "Too much at once",
    503: "A part of the service is away",
}
TITLES_BY_CODE = {"quota_reached": "Quota reached"}
_OTHERWISE = "Something went wrong"
AGAIN = "It is not certain whether this was taken. Send it again: it counts once."
"""Of what was sent as a part of the service went away: its key is the same."""


@dataclass(eq=False)
class PageProblem(Exception):
    """A page's own refusal."""

    status: int
    message: str
    code: str = "page_refused"


@dataclass(eq=False)
class StaleForm(PageProblem):
    """A form of an earlier session: nothing was sent, and what was typed is not lost."""


@dataclass(frozen=True, slots=True)
class Told:
    """A problem as a page shows it."""

    status: int
    title: str
    message: str
    code: str
    request_id: str = ""
    retry_after_seconds: float | None = None


def told(error: PageProblem | ApiError) -> Told:
    """A refusal, of the API or of a page, for a person."""
    if isinstance(error, PageProblem):
        return Told(error.status, title(error.status), error.message, error.code)
    status = error.status or 503
    headline = TITLES_BY_CODE.get(error.code) or title(status)
    return Told(status, headline, error.message, error.code, error.request_id, error.retry_after_seconds)


def title(status: int) -> str:
    """The headline of a problem."""
    return TITLES.get(status, _OTHERWISE)
