"""A form of a session that has ended, and whose page cannot be drawn again: it is sent as it was, by one more click."""

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from policy.same_site import local_path
from reviewer.problems import PageProblem
from reviewer.view import page
from reviewer.visit import Typed

router = APIRouter()


@router.post("/kept")
async def kept(post: Typed) -> HTMLResponse:
    """What was typed, in a form of this session; nothing is sent by itself."""
    to = local_path(post.form.get("kept_for"), "")
    if not to:
        raise PageProblem(422, "It is not known what this was typed for.")
    pairs = [pair for pair in post.form.pairs if pair[0] not in ("csrf", "kept_for")]
    why = "Nothing was sent yet. What you typed is kept here."
    return page(post.visit, "again.html", title="You have signed in again", why=why, pairs=pairs, action=to)
