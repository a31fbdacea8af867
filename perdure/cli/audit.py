"""`perdure audit`: verifies and exports the audit trail."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from perdure.cli.connection import Role, connect
from perdure.cli.terminal import OTHER, USAGE, AsJson, AsName, fail, format_iso_time, say, say_json, table
from perdure.client import Client
from perdure.client.requests import Call, get, path

app = typer.Typer(help="Verify and export the audit trail.", no_args_is_help=True, rich_markup_mode=None)
_PAGE_ROWS = 1_000
_MAX_HEADS = 500
"""Maximum heads of a file that are sent; the newest are chosen.

A request has a size limit, and the last head vouches for all before it.
"""


@app.command("verify")
def verify(
    heads: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A copy of audit-heads.jsonl that you kept."),
    ] = None,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Verify that no audit row was changed or removed. Exit code 1 if a fault is found."""
    sent_heads = None if heads is None else _read_heads(heads)
    with connect(Role.REVIEWER, as_name) as client:
        report = client.send(_verify_call(sent_heads))
    if as_json:
        say_json(report)
    else:
        _print_report(report)
    if not report["ok"]:
        raise typer.Exit(OTHER)


@app.command("export")
def export(
    after: Annotated[int, typer.Option(min=0, metavar="N", help="Only rows after this position in the chain.")] = 0,
    turn: Annotated[str | None, typer.Option(metavar="ID", help="Only rows of this turn.")] = None,
    as_name: AsName = None,
    as_json: AsJson = False,
) -> None:
    """Export the audit rows in chain order, one JSON object per line."""
    del as_json  # the output is JSON in any case
    with connect(Role.ADMIN, as_name) as client:
        for line in _exported_rows(client, after, turn):
            sys.stdout.write(json.dumps(line) + "\n")  # ASCII only: harmless on a terminal
    sys.stdout.flush()


@app.command("show")
def show(
    approval_id: Annotated[str, typer.Argument(metavar="APPROVAL", help="The approval's id.")],
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Show the audit rows of an approval."""
    with connect(Role.REVIEWER, as_name) as client:
        rows = _approval_rows(client, approval_id)
    if as_json:
        say_json({"items": rows, "next": None})
        return
    lines = [(row["seq"], format_iso_time(row["at"]), row["kind"], row["actor"] or "-", _details(row)) for row in rows]
    table(("position", "at", "event", "by", "details"), lines, "No audit rows.")


def _approval_rows(client: Client, approval_id: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = client.send(get(path("approvals", approval_id, "audit"), _json, {"cursor": cursor}))
        rows += page["items"]
        cursor = page["next"]
        if not cursor:
            return rows


def _verify_call(heads: list[Any] | None) -> Call[Any]:
    if heads is None:
        return get(path("audit", "verify"), _json)
    return Call("POST", path("audit", "verify"), _json, body={"heads": heads})


def _read_heads(file: Path) -> list[Any]:
    """Returns the heads of a file.

    Raises: typer.Exit, after a line that states the error.
    """
    try:
        lines = [line for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
        return [json.loads(line) for line in lines[-_MAX_HEADS:]]
    except (OSError, ValueError) as error:
        raise fail(f"{file} is not a valid file of audit heads: {error}", USAGE) from None


def _exported_rows(client: Client, after: int, turn: str | None) -> Iterator[dict[str, Any]]:
    while True:
        query: dict[str, str | int | bool | None] = {"after": after, "turn": turn, "limit": _PAGE_ROWS}
        lines = client.send(get(path("audit", "export"), _json_lines, query))
        yield from lines
        if len(lines) < _PAGE_ROWS:
            return
        after = lines[-1]["seq"]


def _print_report(report: dict[str, Any]) -> None:
    head = report["head"]
    say(f"{report['rows']} rows, {report['erased']} of them erased with a user; the last position is {head['seq']}")
    say(f"{report['heads_checked']} exported heads checked")
    if not report["heads_checked"]:
        exported = report.get("heads_found")
        reason = f"None of the {exported} exported heads can be verified" if exported else "No exported head was found"
        say(f"{reason}, so rows missing at the end of the chain cannot be detected.")
    for key_id, number in report.get("keys_unknown", {}).items():
        say(
            f"The key {key_id} is missing, so {number} rows and heads that it signed cannot be verified. Add it to "
            "PERDURE_AUDIT_KEY, or to audit.key in the data folder, after the first key."
        )
    if report["ok"]:
        say("No faults found.")
        return
    kinds = ", ".join(f"{kind} {number}" for kind, number in report["faults_by_kind"].items())
    listed_note = "" if len(report["faults"]) == report["faults_found"] else f", {len(report['faults'])} of them listed"
    say(f"{report['faults_found']} faults{listed_note}: {kinds}")
    faults = [
        (fault["seq"], fault["kind"], fault["audit_id"], fault.get("subject"), fault.get("key_id"))
        for fault in report["faults"]
    ]
    table(("position", "fault", "row", "approval", "missing key"), faults, "")


def _json(response: httpx.Response) -> Any:
    return response.json()


def _json_lines(response: httpx.Response) -> list[dict[str, Any]]:
    # Splits only at "\n": texts can contain other characters at which Python would split a line (U+2028, U+0085).
    return [json.loads(line) for line in response.text.split("\n") if line]


def _details(row: Mapping[str, Any]) -> object:
    return "erased" if row["erased"] else row["data"]
