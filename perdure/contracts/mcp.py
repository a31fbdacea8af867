"""An MCP server as an app names it, and a tool as such a server lists it."""

import re
from collections.abc import Iterable, Mapping
from typing import Self

from pydantic import Field, JsonValue, model_validator

from perdure.contracts.agents import MOST_ANSWER_BYTES
from perdure.contracts.calls import EffectClass
from perdure.contracts.values import Frozen

SERVER_NAME_PATTERN = r"^[a-z][a-z0-9_]{0,23}$"
SECRET_PATTERN = re.compile(r"\{secret:([a-z][a-z0-9_]{0,63})\}")
"""Where a credential's value goes, in a URL, a header or a variable of a server."""
IDEMPOTENCY_KEY = "perdure/idempotency-key"
"""In a call's `_meta`: the key. In a tool's `_meta`, {"ttl_seconds": n}: it honours such keys for n seconds."""


class McpToolSettings(Frozen):
    """What an app's author says of one tool of a server, instead of what the server says."""

    effect: EffectClass | None = None
    """The author's own word, as in the decorator of a tool; an untrusted server's tool is `opaque` without it."""
    key_argument: str = ""
    """`keyed` only: the argument that takes the idempotency key. It is left out of what the model is shown; empty: the
    key rides in the call's `_meta`."""
    key_ttl_seconds: float | None = Field(default=None, gt=0)
    """`keyed` only, and needed there: for how long the server honours a key."""
    timeout_seconds: float | None = Field(default=None, gt=0, le=3600)
    capability: str = ""
    """What rules match on (S0-52)."""
    risk: str = Field(default="", pattern="^(low|medium|high)?$")
    """Empty: by the tool's effect and hints."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.effect is EffectClass.LOCAL:
            raise ValueError("effect: local is for tools that write to Postgres; a server's tool is outside")
        if (self.effect is EffectClass.KEYED) is not (self.key_ttl_seconds is not None):
            raise ValueError("key_ttl_seconds says how long a keyed tool honours a key: keyed tools only, and always")
        if self.key_argument and self.effect is not EffectClass.KEYED:
            raise ValueError("key_argument is for effect: keyed")
        return self


class McpServer(Frozen):
    """A server: how it is reached, and how far it is believed."""

    name: str = Field(pattern=SERVER_NAME_PATTERN)
    """Its tools are known as `<name>_<tool>`."""
    command: tuple[str, ...] = ()
    """Started in the app's folder and spoken to over its standard input and output; `python` is this interpreter."""
    env: dict[str, str] = {}
    """Its variables beside PATH, HOME and the like; a value may hold {secret:name}."""
    url: str = ""
    """Of a server that speaks streamable HTTP; may hold {secret:name}."""
    headers: dict[str, str] = {}
    """Sent with each request; a value may hold {secret:name}."""
    trust_annotations: bool = False
    """Whether its hints are believed: else each of its tools is `opaque` and waits for an approval."""
    toolsets: tuple[str, ...] = ()
    """The toolsets that are offered; empty: every tool, under its first tag or the server's name."""
    timeout_seconds: float = Field(default=30.0, gt=0, le=3600)
    """For one call of a tool that names no other."""
    start_seconds: float = Field(default=10.0, gt=0, le=120)
    """For starting it, or reaching it, and for its list of tools."""
    max_answer_bytes: int | None = Field(default=None, gt=0, le=MOST_ANSWER_BYTES)
    """Of a server with a url: the largest answer that is read; None: as the operator has set it."""
    tools: dict[str, McpToolSettings] = {}
    """By the server's own names of its tools."""

    @model_validator(mode="after")
    def _is_reachable(self) -> Self:
        if bool(self.command) is bool(self.url):
            raise ValueError("a server has either a command or a url")
        if self.url and not re.match(r"^(https?://|\{secret:)", self.url):
            raise ValueError("url: must begin with http:// or https://, or with {secret:name}")
        if self.command and self.headers:
            raise ValueError("headers are for a server with a url")
        if self.command and self.max_answer_bytes is not None:
            raise ValueError("max_answer_bytes is for a server with a url")
        if self.url and self.env:
            raise ValueError("env is for a server with a command")
        return self

    @property
    def prefix(self) -> str:
        """What the names of its tools begin with."""
        return f"{self.name}_"

    def secrets(self) -> tuple[str, ...]:
        """The names of the credentials that it needs, each once."""
        texts = (self.url, *self.headers.values(), *self.env.values())
        return tuple(dict.fromkeys(name for text in texts for name in SECRET_PATTERN.findall(text)))


class McpHints(Frozen):
    """What a server says of a tool's behaviour. Hints, not facts: believed only where the server is trusted."""

    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None


class McpToolListing(Frozen):
    """A tool as its server lists it, as far as anything here depends on it."""

    name: str
    title: str = ""
    description: str = ""
    parameters: dict[str, JsonValue]
    """JSON Schema of its arguments."""
    output: dict[str, JsonValue] | None = Field(default=None, exclude=True)
    """JSON Schema of its structured answers. No part of what a lock keeps or a card's version is made of: only answers
    are read by it."""
    hints: McpHints = McpHints()
    tags: tuple[str, ...] = ()
    key_ttl_seconds: float | None = None
    """For how long it honours an idempotency key in a call's `_meta`; None where it does not say that it does."""


class McpLock(Frozen):
    """What a server listed when the app's author looked at it; its tools are published from this, without asking it."""

    tools: tuple[McpToolListing, ...]
    """In the server's order."""

    @classmethod
    def of(cls, listed: Iterable[McpToolListing]) -> Self:
        """What a lock keeps of a list."""
        return cls(tools=tuple(each.model_copy(update={"output": None}) for each in listed))


class McpServerListing(Frozen):
    """What a server answered when it was asked for its tools."""

    lock: McpLock | None
    """As a lock would have it; None where it did not answer."""
    told: tuple[str, ...] = ()
    """Why it did not, or which of its tools cannot be offered."""


def server_of(name: str, servers: Mapping[str, McpServer]) -> McpServer | None:
    """The server that a name in an agent's `tools:` speaks of."""
    return next((server for server in servers.values() if name.startswith(server.prefix)), None)
