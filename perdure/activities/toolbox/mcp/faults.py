"""The reason why an MCP server could not be used, in its own words if it has any."""

from pathlib import Path

from mcp.shared.exceptions import MCPError
from mcp_types.version import LATEST_HANDSHAKE_VERSION
from pydantic import ValidationError

from perdure.activities.providers.masking import RequestTexts, mask
from perdure.activities.toolbox.mcp.wire import Wire

_LOG_BYTES = 65_536
_MAX_WORDS = 300


def reason_of(error: BaseException, wire: Wire, log: Path, secrets: tuple[str, ...] = ()) -> str:
    """Returns why the server could not be used, and what to do. `log` is the standard error of its process."""
    texts = RequestTexts(secrets=secrets)
    if wire.exit_code is not None:
        said = mask(_last_line(log), texts)[:_MAX_WORDS]
        how = f"its process ended with exit code {wire.exit_code}"
        return f"{how}: {said}" if said else f"{how} and wrote no error; run its command by hand"
    said = _words_of(error, wire)
    reason = mask(said, texts)[:_MAX_WORDS]
    if wire.http_fault:
        return f"{mask(wire.http_fault, texts)}{f': {reason}' if wire.words else ''}; check its url and headers"
    return f"{reason or type(error).__name__}{_advice(error, wire)}"


def _advice(error: BaseException, wire: Wire) -> str:
    """Returns advice if the server itself ended the start; empty otherwise."""
    if wire.words:
        return "; the words are the server's own: check its settings, or ask its operator"
    if isinstance(error, RuntimeError):
        return f"; use a release of the server for the protocol's version {LATEST_HANDSHAKE_VERSION}"
    return ""


def _words_of(error: BaseException, wire: Wire) -> str:
    if isinstance(error, TimeoutError):
        return "it did not respond in time"
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        return f"its answer breaks the protocol at {'.'.join(map(str, first['loc']))}: {first['msg']}"
    if wire.words:
        return f"it answered with an error: {wire.words}"
    if isinstance(error, OSError) and error.strerror:
        return f"it cannot be started: {error.strerror}; check its command"
    return error.error.message if isinstance(error, MCPError) else str(error)


def _last_line(log: Path) -> str:
    """Returns the last line that is not empty."""
    try:
        text = log.read_bytes()[-_LOG_BYTES:].decode("utf-8", "replace")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
