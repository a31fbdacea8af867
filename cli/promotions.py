"""`perdure memory promotions`: what is proposed for everybody's memory, read and decided by an administrator.

What is approved is the text that this command has just shown: if it were another by then, the API would refuse.
"""

from typing import Annotated

import typer

from cli.asking import Yes, confirm
from cli.connection import Role, command, connect
from cli.screen import AsJson, AsName, ago, fields, moment, say, say_json, table
from perdure.client import Client
from perdure.client.promotion_calls import Promotion, decide_promotion, list_promotions, read_promotion

app = typer.Typer(help="Texts proposed for everybody's memory.", no_args_is_help=True, rich_markup_mode=None)
PromotionId = Annotated[str, typer.Argument(metavar="PROMOTION", help="Its id, from `memory promotions list`.")]
Digest = Annotated[
    str | None, typer.Option(metavar="SHA256", help="Of the text that you read; without it, of the one shown now.")
]


@app.command("list")
def listed(
    status: Annotated[str, typer.Option(help="pending, approved, rejected, withdrawn, or all.")] = "pending",
    limit: Annotated[int, typer.Option(min=1)] = 50,
    cursor: Annotated[str | None, typer.Option(help="`next` of the list before.")] = None,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Those that wait for a decision, proposed last first."""
    with connect(Role.ADMIN, as_name) as client:
        page = client.send(list_promotions(status=None if status == "all" else status, limit=limit, cursor=cursor))
    if as_json:
        say_json(page)
        return
    rows = [
        (each.id, f"{each.store}/{each.path}", each.title, each.risk, each.status, _by(each), ago(each.created_at))
        for each in page.items
    ]
    table(("promotion", "document", "title", "risk", "status", "proposed by", "since"), rows, "Nothing is proposed.")
    if page.next:
        say(f"More: --cursor {page.next}")


@app.command("show")
def show(promotion_id: PromotionId, as_json: AsJson = False, as_name: AsName = None) -> None:
    """One with its text."""
    with connect(Role.ADMIN, as_name) as client:
        found = client.send(read_promotion(promotion_id))
    if as_json:
        say_json(found)
        return
    _show(found)
    if found.status == "pending":
        say()
        say(f"  {command('memory', 'promotions', 'approve', found.id)}")
        say(f"  {command('memory', 'promotions', 'reject', found.id)} --comment WHY")


@app.command("approve")
def approve(
    promotion_id: PromotionId,
    comment: Annotated[str, typer.Option(help="What you want kept with it.")] = "",
    digest: Digest = None,
    yes: Yes = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Share the text with everybody; its proposer may not."""
    with connect(Role.ADMIN, as_name) as client:
        _decide(client, promotion_id, "approve", comment, digest, yes=yes, as_json=as_json)


@app.command("reject")
def reject(
    promotion_id: PromotionId,
    comment: Annotated[str, typer.Option(help="Why.")],
    digest: Digest = None,
    yes: Yes = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Leave the shared memory as it is, for good."""
    with connect(Role.ADMIN, as_name) as client:
        _decide(client, promotion_id, "reject", comment, digest, yes=yes, as_json=as_json)


def _decide(
    client: Client, promotion_id: str, decision: str, comment: str, digest: str | None, *, yes: bool, as_json: bool
) -> None:
    found = client.send(read_promotion(promotion_id))
    if not as_json:
        _show(found)
    confirm(f"{decision} this?", yes=yes, as_json=as_json)
    made = client.send(decide_promotion(promotion_id, decision, digest or found.sha256, comment))
    if as_json:
        say_json(made)
    else:
        say(f"{made.status}: {made.store}/{made.path}")


def _show(found: Promotion) -> None:
    fields(
        [
            ("promotion", found.id),
            ("status", found.status),
            ("document", f"{found.store}/{found.path} ({found.type})"),
            ("it is", "a change of the shared document" if found.base_sha256 else "a new document"),
            ("title", found.title),
            ("risk", found.risk),
            ("rests on", found.evidence_summary),
            ("proposed by", f"{_by(found)}, {moment(found.created_at)}"),
            ("decided by", f"{found.decided_by}, {moment(found.decided_at)}" if found.decided_by else ""),
            ("comment", found.comment),
            ("sha256", found.sha256),
        ]
    )
    if found.content is not None:
        say()
        say(found.content)


def _by(found: Promotion) -> str:
    return f"{found.proposed_by} (by an agent)" if found.by_agent else found.proposed_by
