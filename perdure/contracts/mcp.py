"""An MCP server as an app declares it, and a tool as such a server lists it."""

import re
from collections.abc import Iterable, Mapping
from typing import Self

from pydantic import Field, JsonValue, model_validator

from perdure.contracts.agents import MAX_ANSWER_BYTES
from perdure.contracts.calls import EffectClass
from perdure.contracts.values import Frozen

SERVER_NAME_PATTERN = r"^[a-z][a-z0-9_]{0,23}$"
SECRET_PATTERN = re.compile(r"\{secret:([a-z][a-z0-9_]{0,63})\}")
"""The placeholder of a secret's value in a URL, a header or a variable of a server."""
IDEMPOTENCY_KEY = "perdure/idempotency-key"
"""The field of the idempotency key in a call's `_meta`. In a tool's `_meta`, {"ttl_seconds": n}: the tool honors such
keys for n seconds."""


class McpToolSettings(Frozen):
    """Settings of one tool of a server. They take precedence over what the server says."""

    effect: EffectClass | None = None
    """The effect class, as in a tool's decorator. Without it, a tool of an untrusted server is `opaque`."""
    key_argument: str = ""
    """`keyed` only: the argument that takes the idempotency key. The model does not see this argument. Empty: the key
    is sent in the call's `_meta`."""
    key_ttl_seconds: float | None = Field(default=None, gt=0)
    """`keyed` only, and required there: how long the server honors a key, in seconds."""
    timeout_seconds: float | None = Field(default=None, gt=0, le=3600)
    capability: str = ""
    """The capability that rules match."""
    risk: str = Field(default="", pattern="^(low|medium|high)?$")
    """Empty: derived from the tool's effect and hints."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.effect is EffectClass.LOCAL:
            raise ValueError(
                "effect: local is for tools that write to Perdure's database; an MCP server's tool is external"
            )
        if (self.effect is EffectClass.KEYED) is not (self.key_ttl_seconds is not None):
            raise ValueError("key_ttl_seconds is required for keyed tools and allowed for them only")
        if self.key_argument and self.effect is not EffectClass.KEYED:
            raise ValueError("key_argument is only allowed with effect: keyed")
        return self


class McpServer(Frozen):
    """An MCP server: how to reach it, and how far to trust it."""

    name: str = Field(pattern=SERVER_NAME_PATTERN)
    """Its tools are called `<name>_<tool>`."""
    command: tuple[str, ...] = ()
    """Command that starts the server in the app's folder. The transport is standard input and output. `python` is the
    current interpreter."""
    env: dict[str, str] = {}
    """Environment variables in addition to PATH, HOME and similar ones. A value may contain {secret:name}."""
    url: str = ""
    """Address of a server with the streamable HTTP transport; may contain {secret:name}."""
    headers: dict[str, str] = {}
    """Sent with each request. A value may contain {secret:name}."""
    trust_annotations: bool = False
    """True if the server's hints are trusted. If not, each of its tools is `opaque` and needs an approval."""
    toolsets: tuple[str, ...] = ()
    """The toolsets to offer. Empty: every tool, under its first tag or the server's name."""
    timeout_seconds: float = Field(default=30.0, gt=0, le=3600)
    """Time limit of one call of a tool that sets none, in seconds."""
    start_seconds: float = Field(default=10.0, gt=0, le=120)
    """Time limit for starting or reaching the server and listing its tools, in seconds."""
    max_answer_bytes: int | None = Field(default=None, gt=0, le=MAX_ANSWER_BYTES)
    """The largest answer to read from a server with a URL, in bytes. None: the operator's setting."""
    tools: dict[str, McpToolSettings] = {}
    """Settings of its tools, by the server's own tool names."""

    @model_validator(mode="after")
    def _is_reachable(self) -> Self:
        if bool(self.command) is bool(self.url):
            raise ValueError("a server needs either `command` or `url`")
        if self.url and not re.match(r"^(https?://|\{secret:)", self.url):
            raise ValueError("url: must begin with http:// or https://, or with {secret:name}")
        if self.command and self.headers:
            raise ValueError("`headers` is only allowed for a server with `url`")
        if self.command and self.max_answer_bytes is not None:
            raise ValueError("`max_answer_bytes` is only allowed for a server with `url`")
        if self.url and self.env:
            raise ValueError("`env` is only allowed for a server with `command`")
        return self

    @property
    def prefix(self) -> str:
        """The prefix of its tools' names for models: the server's name and `_`."""
        return f"{self.name}_"

    def secrets(self) -> tuple[str, ...]:
        """Returns the names of the secrets that the server needs, without duplicates."""
        texts = (self.url, *self.headers.values(), *self.env.values())
        return tuple(dict.fromkeys(name for text in texts for name in SECRET_PATTERN.findall(text)))


class McpHints(Frozen):
    """A server's hints about a tool's behavior. They are used only if the server is trusted."""

    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None


class McpToolListing(Frozen):
    """A tool as its server lists it, reduced to the fields that Perdure uses."""

    name: str
    title: str = ""
    description: str = ""
    parameters: dict[str, JsonValue]
    """JSON Schema of the arguments."""
    output: dict[str, JsonValue] | None = Field(default=None, exclude=True)
    """JSON Schema of the structured results. Neither the lock nor the card's version includes it; it is only used to
    read results."""
    hints: McpHints = McpHints()
    tags: tuple[str, ...] = ()
    key_ttl_seconds: float | None = None
    """Seconds for which the tool honors an idempotency key in a call's `_meta`; None if the server states no time."""


class McpLock(Frozen):
    """The tools that a server listed when the app's author locked it. They are published from this, without a request
    to the server."""

    tools: tuple[McpToolListing, ...]
    """The tools, in the server's order."""

    @classmethod
    def of(cls, listed: Iterable[McpToolListing]) -> Self:
        """Returns the lock for a list of tools."""
        return cls(tools=tuple(each.model_copy(update={"output": None}) for each in listed))


class McpServerListing(Frozen):
    """A server's answer to a request for its tools."""

    lock: McpLock | None
    """The listing in the form of a lock; None if the server did not answer."""
    problems: tuple[str, ...] = ()
    """Reasons that the server did not answer or that tools cannot be offered."""


def server_of(name: str, servers: Mapping[str, McpServer]) -> McpServer | None:
    """Returns the server that a name in an agent's `tools:` belongs to."""
    return next((server for server in servers.values() if name.startswith(server.prefix)), None)
