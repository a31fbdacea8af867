"""The call of an approval as it is frozen: the exact arguments, what a reviewer changed in them, their digests."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from cli.screen import say
from perdure.client import Approval
from policy.printable import cut, pretty_json, printable

_DIGEST_SHOWN = 16
_MOST_CHARACTERS = 8_000
"""Of the arguments in `show`; `--full`, and every decision, shows all of them."""


def show_arguments(approval: Approval, *, full: bool = True) -> None:
    """Exactly what will run; at a checkpoint what came of it, and what it was made from."""
    if approval.kind == "checkpoint":
        say(f"{approval.checkpoint}: the result of {approval.tool}:" if approval.tool else f"{approval.checkpoint}:")
        _block(printable(approval.result) if isinstance(approval.result, str) else pretty_json(approval.result), full)
        if not approval.tool:
            return
    before, after = _changed(approval)
    say("exact arguments:" if before is None else "exact arguments, as a reviewer has changed them:")
    _block(pretty_json(after), full)
    if before is not None:
        say("what was changed:")
        _block("\n".join(differences(before, after)), full)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """A unified diff of two sets of arguments, one line after the other; none where they are equal."""
    lines = difflib.unified_diff(
        pretty_json(before).splitlines(), pretty_json(after).splitlines(), "as asked for", "as changed", lineterm=""
    )
    yield from lines


def digests(approval: Approval) -> Iterator[tuple[str, str]]:
    """The digest of the arguments that are shown; where a decision changed them, that of what was asked for as well."""
    decided = str((approval.decision or {}).get("digest") or "")
    if not decided or decided == approval.digest:
        yield "digest", _short(approval.digest)
        return
    yield "digest in force", _short(decided)
    yield "digest asked for", _short(approval.digest)


def _short(digest: str) -> str:
    return f"{digest[:_DIGEST_SHOWN]}…" if digest else ""


def _changed(approval: Approval) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """What was asked for, where a reviewer has changed it, and what runs."""
    revision = approval.revision or {}
    if isinstance(revision.get("args_before"), dict):
        return revision["args_before"], approval.args
    decided = (approval.decision or {}).get("args")
    return (approval.args, decided) if isinstance(decided, dict) else (None, approval.args)


def _block(text: str, full: bool) -> None:
    shown = text if full else cut(text, _MOST_CHARACTERS)
    for line in shown.splitlines():
        say(f"  {line}")
    if len(shown) < len(text):
        say("  (--full shows all of it, and so does every decision)")
