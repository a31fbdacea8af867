"""Webhooks as e-mail: a message for each approval, and a reply to it when it is decided or expires.

A sent mail cannot be changed, so the outcome is in its thread. Decisions by mail are not possible: the link leads to
the page.

  python -m deploy.receivers.mail
"""

import asyncio
import os
import smtplib
import ssl
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import Any, Literal

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route

from deploy.receivers.configuration import open_state, port_of, required_values
from deploy.receivers.endpoint import SendFailed, WebhookEndpoint
from deploy.receivers.state import ReceiverState
from deploy.receivers.wording import fact_lines, headline, is_open

_TIMEOUT_SECONDS = 8.0
_REQUIRED = ("PERDURE_WEBHOOK_SECRET", "MAIL_FROM", "MAIL_TO", "SMTP_HOST")
Tls = Literal["starttls", "implicit", "none"]


@dataclass(frozen=True, slots=True)
class MailConfig:
    """The operator's settings."""

    secret: str = field(repr=False)
    sender: str
    to: tuple[str, ...]
    host: str
    port: int
    tls: Tls = "starttls"
    user: str = ""
    password: str = field(default="", repr=False)


class Mail:
    """One mail server."""

    def __init__(self, config: MailConfig) -> None:
        self._config = config

    async def send_notice(self, notice: dict[str, Any], place: str) -> str:
        """Sends the first mail of an approval, or the next one of its thread."""
        if place and is_open(notice["approval"]):
            return place  # a reassignment or a vote, which change nothing in a mail
        message = self._message(notice, place)
        try:
            await asyncio.to_thread(self._send, message)
        except (OSError, smtplib.SMTPException) as error:
            raise SendFailed(f"mail: {type(error).__name__}") from error
        return place or str(message["Message-ID"])

    def _message(self, notice: dict[str, Any], first: str) -> EmailMessage:
        approval = notice["approval"]
        message = EmailMessage()
        message["From"], message["To"] = self._config.sender, ", ".join(self._config.to)
        message["Subject"] = f"Re: {_subject(approval)}" if first else _subject(approval)
        message["Message-ID"] = f"<{notice['id']}@{self._config.sender.rpartition('@')[2]}>"
        if first:
            message["In-Reply-To"] = message["References"] = first
        message.set_content("\n".join([headline(approval), "", *fact_lines(approval), "", notice["url"], ""]))
        return message

    def _send(self, message: EmailMessage) -> None:
        config, trusted = self._config, ssl.create_default_context()
        if config.tls == "implicit":
            server: smtplib.SMTP = smtplib.SMTP_SSL(config.host, config.port, timeout=_TIMEOUT_SECONDS, context=trusted)
        else:
            server = smtplib.SMTP(config.host, config.port, timeout=_TIMEOUT_SECONDS)
        with server:
            if config.tls == "starttls":
                server.starttls(context=trusted)
            if config.user:
                server.login(config.user, config.password)
            server.send_message(message)


def _subject(approval: dict[str, Any]) -> str:
    return " ".join(headline({**approval, "status": "pending"}).split())


def create_receiver(config: MailConfig, state: ReceiverState) -> Starlette:
    """Returns the program's application."""
    endpoint = WebhookEndpoint(config.secret, state, Mail(config).send_notice)
    return Starlette(routes=[Route("/perdure", endpoint.__call__, methods=["POST"])])


def main() -> None:
    """Runs the server.

    Raises: SystemExit that names a setting that is missing or wrong.
    """
    secret, sender, to, host = required_values(os.environ, *_REQUIRED)
    tls = os.environ.get("SMTP_TLS", "starttls")
    if tls not in ("starttls", "implicit", "none"):
        raise SystemExit("SMTP_TLS must be starttls, implicit or none")
    config = MailConfig(
        secret,
        sender,
        tuple(each.strip() for each in to.split(",")),
        host,
        port_of(os.environ, "SMTP_PORT", 587),
        tls,  # type: ignore[arg-type]
        os.environ.get("SMTP_USER", ""),
        os.environ.get("SMTP_PASSWORD", ""),
    )
    port, state = port_of(os.environ, "RECEIVER_PORT", 8090), open_state(os.environ)
    uvicorn.run(create_receiver(config, state), port=port, access_log=False)


if __name__ == "__main__":
    main()
