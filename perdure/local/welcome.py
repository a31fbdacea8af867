"""The text that `perdure up` prints once everything is ready: what a newcomer needs, in order."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from perdure.local.config import Link

_WIDTH = 100
_TOKENS = (
    "Tokens, only for scripts that call the API (`Authorization: Bearer TOKEN`): the requester starts turns, the "
    "reviewer decides on approvals, the admin also manages users, rules and budgets."
)
_SETUP_CODE = (
    "Setup code, only for accounts with a password: the first user registers with the setup code at {api}/sign-in, "
    "once, {when}, and becomes the administrator."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The values of one start."""

    seconds: float
    home: Path
    logs: Path
    command: str
    """The name of the command in another terminal."""
    api: str
    public_url: str = ""
    pages: Sequence[tuple[Link, str]]
    """Each with its address, which contains a code if it signs in."""
    temporal_ui: str = ""
    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    setup_code: str = field(default="", repr=False)
    setup_code_expires_at: datetime | None = None
    left_out: Sequence[str] = ()
    """Lines about agents that are not published, with the reasons."""

    def text(self) -> str:
        """Returns the text that the terminal shows after a start: links, commands, addresses and folders."""
        width = max(len(label) for _, rows in self._parts() for label, _ in rows)
        parts = [
            "\n".join([*_wrapped(heading), *(f"  {label:<{width}}   {value}".rstrip() for label, value in rows)])
            for heading, rows in self._parts()
        ]
        return "\n\n".join([*parts, *self._without(), "Ctrl-C stops everything; the data stays."])

    def _parts(self) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        """Returns the sections: the purpose of each, and its rows of label and value."""
        yield f"Ready in {self.seconds:.1f} s.", []
        signing = [(link, address) for link, address in self.pages if link.role]
        for link, address in signing:
            yield link.purpose, [(link.label_with_role, address)]
        if any("?code=" in address for _, address in signing):
            again = [(f"{link.label} again", f"{self.command} link {link.role}") for link, _ in signing]
            yield (
                "A link signs the browser in once, within 15 minutes. A command in another terminal prints a new one.",
                again,
            )
        yield (
            "On the command line, in another terminal:",
            [
                ("agents", f"{self.command} agents list"),
                ("chat", f"{self.command} chat AGENT"),
                ("approvals", f"{self.command} approvals list"),
            ],
        )
        public = [("public URL", self.public_url)] if self.public_url else []
        yield "Addresses:", [("API", self.api), *public, *self._open_pages()]
        if self.tokens:
            yield _TOKENS, [(f"{role} token", token) for role, token in self.tokens.items()]
        if self.setup_code:
            expires_at = self.setup_code_expires_at
            when = f"until {expires_at.astimezone(UTC):%-d %b %Y, %H:%M UTC}" if expires_at else "within 24 hours"
            yield _SETUP_CODE.format(api=self.api, when=when), [("setup code", self.setup_code)]
        yield "Files:", [("data", str(self.home)), ("logs", f"{self.logs} (one file for each part)")]

    def _open_pages(self) -> Iterator[tuple[str, str]]:
        yield from ((link.label, address) for link, address in self.pages if not link.role)
        if self.temporal_ui:
            yield "Temporal UI", self.temporal_ui

    def _without(self) -> Iterator[str]:
        if self.left_out:
            yield "\n".join(["Agents:", *(f"  {line}" for line in self.left_out)])


def no_app(command: str, kept: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Returns the message of a start without a requested app; `kept` are the agents that stay published, by app."""
    examples, own = f"{command} up --examples", f"{command} init my-app && {command} up --app my-app"
    if not kept:
        return (
            "No agent is published, because no app is selected. Stop this stack and start it with one:",
            f"  {examples:<{len(own)}}   the examples that ship",
            f"  {own}   your own app",
        )
    named = f"{command} up --app DIR"
    width = max(len(examples), len(named))
    return (
        "No app is selected: nothing was published, and nothing was withdrawn. These stay published:",
        *(f"  {app} ({', '.join(agents)})" for app, agents in kept.items()),
        "Their apps are not loaded: calls of their tools wait until they are. Stop this stack and start it with them:",
        f"  {examples:<{width}}   the examples that ship",
        f"  {named:<{width}}   the app in DIR; all agents of other apps are withdrawn",
    )


def _wrapped(heading: str) -> list[str]:
    return textwrap.wrap(heading, _WIDTH, break_on_hyphens=False, break_long_words=False)
