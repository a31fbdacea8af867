"""An MCP server over HTTP is reached by the rules of perdure/egress/, and its answers are bounded."""

from pathlib import Path

import psutil
import pytest

from perdure.activities.toolbox.mcp.session import McpSession, Unreachable
from perdure.contracts.mcp import McpServer
from perdure.core.egress import Outbound, named_host
from tests.doubles.hostile_target import MEBI, Talk, floods, says, silence, threaded
from tests.doubles.resolver import Names

JSON = "content-type: application/json"


def session(url: str, outbound: Outbound | None = None, seconds: float = 3) -> McpSession:
    server = McpServer(name="desk", url=url, start_seconds=seconds)
    return McpSession(server, Path(), Path(), lambda name: None, outbound=outbound or Outbound())


async def refusal_of(opened: McpSession) -> str:
    """Why it cannot be used: names the host only if the rules of outgoing requests forbid it."""
    with pytest.raises(Unreachable) as unreachable:
        await opened.connection()
    await opened.close()
    return str(unreachable.value)


@pytest.mark.parametrize("host", ["169.254.169.254", "[fe80::1]", "[::ffff:169.254.169.254]"])
async def test_a_servers_file_cannot_name_the_clouds_metadata(host: str) -> None:
    assert host.strip("[]").split("::")[0] in await refusal_of(session(f"http://{host}/mcp"))


async def test_a_servers_file_allows_its_host_and_port_and_the_operator_any_other(resolver: Names) -> None:
    with threaded(says(404, b"{}", JSON)) as made:
        await refusal_of(session(f"{made.url}/mcp"))
        by_its_file = len(made.heads)
        resolver("service.test", ["169.254.169.254"])
        assert "service.test" in await refusal_of(session("http://service.test/mcp"))
        named = Outbound(named=(named_host("service.test", by_operator=True),))
        resolver("service.test", ["127.0.0.1"])
        assert "service.test" not in await refusal_of(session(f"http://service.test:{made.port}/mcp", named))
    assert 0 < by_its_file < len(made.heads)


TALKS = {
    "endless": floods(200, b"x" * MEBI, JSON),
    "events": floods(200, b"data: " + b"x" * MEBI, "content-type: text/event-stream"),
    "error": floods(500, b"x" * MEBI, JSON),
    "silence": silence,
}
"""Other answers of this kind are those of the transport's own tests."""


@pytest.mark.parametrize("talk", TALKS.values(), ids=TALKS)
async def test_an_endless_answer_is_refused(talk: Talk) -> None:
    before = psutil.Process().memory_info().rss
    with threaded(talk) as made:
        await refusal_of(session(f"{made.url}/mcp", seconds=1 if talk is silence else 3))
    assert (psutil.Process().memory_info().rss - before) // MEBI < 150


async def test_no_redirect_to_another_host_is_followed() -> None:
    with threaded(says()) as other, threaded(says(307, b"", f"location: {other.url}/mcp")) as made:
        await refusal_of(session(f"{made.url}/mcp"))
    assert made.heads and other.heads == []
    with threaded(says(307, b"", "location: /again")) as looping:
        await refusal_of(session(f"{looping.url}/mcp"))
    assert len(looping.heads) == 3 * sum(" /mcp " in head for head in looping.heads)


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)
