"""What a command says and exits with where the API says no."""

import json
import sys

from perdure.client import ApiError
from perdure.client.errors import UNREACHABLE
from policy.printable import printable

DONE, OTHER, USAGE, NOT_FOUND, DECIDED, EXPIRED = 0, 1, 2, 4, 5, 6
_DECIDED_CODES = frozenset(
    {"already_decided", "already_settled", "already_voted", "already_escalated", "already_running"}
)
_CODE_OF_STATUS = {400: USAGE, 422: USAGE, 404: NOT_FOUND, 410: EXPIRED}


def exit_code(error: ApiError) -> int:
    """The exit code for a refusal: 2 usage, 4 not found, 5 already decided, 6 expired, 1 anything else."""
    return exit_code_of(error.code, error.status)


def exit_code_of(code: str, status: object) -> int:
    """The same for a refusal that is an item of an answer."""
    if code in _DECIDED_CODES:
        return DECIDED
    return _CODE_OF_STATUS.get(status, OTHER) if isinstance(status, int) else OTHER


def explained(error: ApiError, *, as_json: bool) -> int:
    """Say on stderr what went wrong and what to do next; the exit code."""
    if as_json:
        body = {"status": error.status, "code": error.code, "message": error.message, "details": error.details}
        sys.stderr.write(json.dumps({"error": body}) + "\n")
        return exit_code(error)
    sys.stderr.write(printable(f"{error.message} ({error.code})") + "\n")
    hint = _hint(error)
    if hint:
        sys.stderr.write(printable(hint) + "\n")
    return exit_code(error)


def _hint(error: ApiError) -> str:
    if error.code == UNREACHABLE:
        return "Is it running? Start it with `make up`; `perdure status` shows what runs."
    if error.status == 401:
        return "The token is missing or wrong: set PERDURE_TOKEN, or use --as requester, reviewer or admin."
    if error.code == "quota_reached":
        return "`perdure files usage` shows what you keep; `perdure files delete FILE` deletes a file."
    if error.code == "agent_not_found":
        return "`perdure agents list` shows whom there is."
    fields = error.details.get("fields")
    if error.code == "invalid_input" and isinstance(fields, list):
        return "\n".join(f"{each.get('field')}: {each.get('problem')}" for each in fields if isinstance(each, dict))
    decision = error.details.get("decision")
    if error.code == "already_decided" and isinstance(decision, dict) and decision.get("type"):
        said = decision.get("comment") or decision.get("reason_code")
        by = f" by {decision['by']}" if decision.get("by") else ""
        return f"It was decided: {decision.get('type')}{by}" + (f": {said}" if said else ".")
    if error.code == "claimed":
        return "The claim lapses by itself; an admin may `release` it."
    if error.retry_after_seconds is not None:
        return f"Worth another try in {error.retry_after_seconds:.0f} s."
    if error.code == "conversation_busy":
        return f"The open turn is {error.details.get('turn_id')} ({error.details.get('status')})."
    deadline = error.details.get("deadline")
    return f"The deadline is {deadline}." if deadline else ""
