"""Webhooks in a Slack channel: a message for each approval, updated when it is decided or expires.

Calls with a low risk can be decided with its buttons, as the user who pressed them: each Slack user is linked to a
Perdure token with the label `chat`. No decision is made as the bot, and Perdure itself rejects all other uses of such a
token.

  python -m deploy.receivers.slack
"""

import hashlib
import hmac
import json
import os
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from deploy.receivers.configuration import open_state, port_of, read_token_file, required_secrets, required_values
from deploy.receivers.endpoint import SendFailed, WebhookEndpoint
from deploy.receivers.state import ReceiverState
from deploy.receivers.wording import arguments_text, fact_lines, has_buttons, headline

_VALID_SECONDS = 300
_SECRETS = ("PERDURE_WEBHOOK_SECRET", "SLACK_TOKEN", "SLACK_SIGNING_SECRET")
_DECISIONS = {"approve": {"decision": "approve"}, "reject": {"decision": "reject", "reason_code": "from_chat"}}


@dataclass(frozen=True, slots=True)
class SlackConfig:
    """The operator's settings."""

    perdure: str
    secret: str = field(repr=False)
    token: str = field(repr=False)
    signing_secret: str = field(repr=False)
    channel: str
    people: dict[str, str] = field(repr=False)
    """Perdure tokens by Slack user id."""
    api: str = "https://slack.com/api"


class Slack:
    """One channel."""

    def __init__(self, config: SlackConfig, http: httpx.AsyncClient) -> None:
        self._config, self._http = config, http

    async def send_notice(self, notice: dict[str, Any], place: str) -> str:
        """Posts the message, or updates it."""
        content = {"text": headline(notice["approval"]), "blocks": _blocks(notice)}
        if place:
            channel, _, ts = place.partition(" ")
            await self._call("chat.update", {"channel": channel, "ts": ts, **content})
            return place
        sent = await self._call("chat.postMessage", {"channel": self._config.channel, **content})
        return f"{sent['channel']} {sent['ts']}"

    async def handle_action(self, request: Request) -> Response:
        """POST /slack/actions: a button was pressed."""
        body = await request.body()
        if not self._is_signed_by_slack(request, body):
            return Response(status_code=401)
        payload = json.loads(parse_qs(body.decode())["payload"][0])
        for action in payload.get("actions", ()):
            if action.get("action_id") in _DECISIONS:
                why = await self._decide(payload["user"]["id"], action["action_id"], json.loads(action["value"]))
                if why:
                    where = {"channel": payload["channel"]["id"], "user": payload["user"]["id"]}
                    await self._call("chat.postEphemeral", {**where, "text": why})
        return Response(status_code=200)

    async def _decide(self, user: str, decision: str, about: dict[str, Any]) -> str:
        """Decides as the user that this Slack user is linked to; returns the reason in words if it was rejected."""
        token = self._config.people.get(user)
        if token is None:
            return "Your account is not linked to a Perdure user; decide on the approval page."
        try:
            answer = await self._http.post(
                f"{self._config.perdure}/v1/approvals/{about['id']}/decision",
                json={**_DECISIONS[decision], "digest": about["digest"], "revision": about.get("revision")},
                headers={"Authorization": f"Bearer {token}"},
            )
            reply = answer.json()
        except (httpx.HTTPError, ValueError):
            return "Perdure is unreachable; no decision was made."
        return "" if answer.is_success else f"No decision was made: {reply['error']['message']}"

    def _is_signed_by_slack(self, request: Request, body: bytes) -> bool:
        stamp = request.headers.get("x-slack-request-timestamp", "")
        if not stamp.isdigit() or abs(int(stamp) - time.time()) > _VALID_SECONDS:
            return False
        key, text = self._config.signing_secret.encode(), f"v0:{stamp}:".encode() + body
        expected = "v0=" + hmac.new(key, text, hashlib.sha256).hexdigest()
        return hmac.compare_digest(expected.encode(), request.headers.get("x-slack-signature", "").encode())

    async def _call(self, method: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = await self._http.post(
                f"{self._config.api}/{method}", json=body, headers={"Authorization": f"Bearer {self._config.token}"}
            )
            reply = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise SendFailed(f"Slack: {type(error).__name__}") from error
        if not isinstance(reply, dict) or not reply.get("ok"):
            raise SendFailed(f"Slack rejected {method}")
        return reply


def _blocks(notice: dict[str, Any]) -> list[dict[str, Any]]:
    approval = notice["approval"]
    lines = [
        f"*{_escape_markup(headline(approval))}*",
        *map(_escape_markup, fact_lines(approval)),
        f"<{notice['url']}|Open the approval>",
    ]
    blocks: list[dict[str, Any]] = [_section("\n".join(lines))]
    if has_buttons(approval):
        about = json.dumps({"id": approval["id"], "digest": approval["digest"], "revision": approval.get("revision")})
        blocks.append(_section(f"```{_escape_markup(arguments_text(approval)).replace('`', 'ˋ')}```"))
        blocks.append({"type": "actions", "elements": [_button(each, about) for each in _DECISIONS]})
    return blocks


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text}}


def _button(decision: str, about: str) -> dict[str, Any]:
    label = {"type": "plain_text", "text": decision.capitalize()}
    return {"type": "button", "action_id": decision, "text": label, "value": about}


def _escape_markup(text: str) -> str:
    """Returns text that Slack does not interpret: no links, no mentions."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def create_receiver(config: SlackConfig, state: ReceiverState, http: httpx.AsyncClient) -> Starlette:
    """Returns the program's application."""
    slack = Slack(config, http)
    endpoint = WebhookEndpoint(config.secret, state, slack.send_notice)
    return Starlette(
        routes=[
            Route("/perdure", endpoint.__call__, methods=["POST"]),
            Route("/slack/actions", slack.handle_action, methods=["POST"]),
        ]
    )


def main() -> None:
    """Runs the server.

    Raises: SystemExit that names a setting or file that is missing or wrong.
    """
    url, channel, *_ = required_values(os.environ, "PERDURE_URL", "SLACK_CHANNEL", *_SECRETS, "SLACK_PEOPLE")
    secret, token, signing = required_secrets(os.environ, *_SECRETS)
    people = read_token_file(os.environ, "SLACK_PEOPLE")
    config = SlackConfig(url.rstrip("/"), secret, token, signing, channel, people)
    port, state = port_of(os.environ, "RECEIVER_PORT", 8090), open_state(os.environ)
    uvicorn.run(create_receiver(config, state, httpx.AsyncClient(timeout=8)), port=port, access_log=False)


if __name__ == "__main__":
    main()
