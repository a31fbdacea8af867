"""What can be done with an approval beside deciding: withdraw it, claim and release it, hand it over."""

from collections.abc import Awaitable, Callable

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from api.auth import Open, Principal, Reader
from api.bodies import ClaimBody, CommentBody, ReassignBody, ReleaseBody
from api.ids import ApprovalId
from api.once import Key, once
from api.routes.approvals import links, person
from api.services import Services
from store import approval_views, claims, handovers, withdrawals
from store.database import Connection
from store.outbox import Note
from store.reviews import Review

router = APIRouter(prefix="/v1/approvals", tags=["approvals"])
Act = Callable[[Connection], Awaitable[tuple[Review, Note | None]]]


@router.post("/{approval_id}/withdraw")
async def withdraw(
    services: Open, who: Reader, approval_id: ApprovalId, body: CommentBody | None = None, key: Key = None
) -> JSONResponse:
    """Take back your request, or an approval whose call has not begun; its turn goes on without it."""
    given = body or CommentBody()
    turn: list[Review] = []

    async def act(tx: Connection) -> tuple[Review, Note | None]:
        review, note = await withdrawals.withdraw(tx, approval_id, person(who), given.comment)
        turn.append(review)
        return review, note

    answer = await _done(services, who, approval_id, "withdraw", key, given, act)
    for review in turn:
        await services.live.wake(review.address.conversation_id)
    return answer


@router.post("/{approval_id}/claim")
async def claim(
    services: Open, who: Reader, approval_id: ApprovalId, body: ClaimBody | None = None, key: Key = None
) -> JSONResponse:
    """Keep others from deciding while you look; it lapses by itself. Claim again to keep it longer."""
    given = body or ClaimBody()

    async def act(tx: Connection) -> tuple[Review, Note | None]:
        return await claims.claim(tx, approval_id, person(who), given.seconds), None

    return await _done(services, who, approval_id, "claim", key, given, act)


@router.post("/{approval_id}/release")
async def release(
    services: Open, who: Reader, approval_id: ApprovalId, body: ReleaseBody | None = None, key: Key = None
) -> JSONResponse:
    """Give a claim back before it lapses; an admin may end anybody's."""

    async def act(tx: Connection) -> tuple[Review, Note | None]:
        return await claims.release(tx, approval_id, person(who)), None

    return await _done(services, who, approval_id, "release", key, body or ReleaseBody(), act)


@router.post("/{approval_id}/reassign")
async def reassign(
    services: Open, who: Reader, approval_id: ApprovalId, body: ReassignBody, key: Key = None
) -> JSONResponse:
    """Put it on somebody's list, who must be able to decide on it. A named reviewer gives the place to that person."""

    async def act(tx: Connection) -> tuple[Review, Note | None]:
        return await handovers.reassign(tx, approval_id, person(who), body.to, body.comment), None

    return await _done(services, who, approval_id, "reassign", key, body, act)


@router.post("/{approval_id}/escalate")
async def escalate(
    services: Open, who: Reader, approval_id: ApprovalId, body: CommentBody | None = None, key: Key = None
) -> JSONResponse:
    """Hand it to the role that its policy names for that; once."""
    given = body or CommentBody()

    async def act(tx: Connection) -> tuple[Review, Note | None]:
        return await handovers.escalate(tx, approval_id, person(who), given.comment), None

    return await _done(services, who, approval_id, "escalate", key, given, act)


async def _done(
    services: Services, who: Principal, approval_id: str, verb: str, key: str | None, body: BaseModel, act: Act
) -> JSONResponse:
    """Do it once, and answer with the approval as it then is."""

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        _, note = await act(tx)
        shown = await approval_views.get(tx, approval_id, None, person(who))
        return 200, shown | {"links": links(services, who, shown)}, note

    return await once(services, who, f"{verb}/{approval_id}", key, body, work)
