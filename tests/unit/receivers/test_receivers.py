"""The ready receivers: one message for an approval, rewritten or followed; decisions as the linked person, or none."""

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from starlette.applications import Starlette

from deploy.receivers import mail, slack
from deploy.receivers.mail import MailConfig
from deploy.receivers.slack import SlackConfig
from deploy.receivers.state import ReceiverState
from perdure.core.delivery import DELIVERY, SIGNATURE, TIMESTAMP, sign

SECRET, SIGNING = "s" * 64, "the secret of the Slack app"
SET = dict.fromkeys((*slack._SECRETS, *mail._REQUIRED, "PERDURE_URL", "SLACK_CHANNEL", "SLACK_PEOPLE"), "set")


def notice(number: int = 1, **changed: Any) -> dict[str, Any]:
    approval = {
        "id": "a-1", "status": "pending", "version": 1, "kind": "approval", "tool": "note", "agent": "desk",
        "risk": "low", "requested_by": "requester", "expires_at": "2026-12-01T00:00:00+00:00", "assignee": None,
        "reviewer_role": "reviewer", "decision": None, "decided_by": None, "args": {"text": "hi"}, "digest": "d" * 64,
        "revision": 2, "messages_since": [{"at": "2026-11-30T00:00:00+00:00", "text": "<!here> wait"}],
        **changed,
    }  # fmt: skip
    link = "https://perdure.test/review/a-1"
    return {"id": f"n-{number}", "event": "approval.opened", "url": link, "approval": approval}


def signed(said: dict[str, Any], secret: str = SECRET) -> dict[str, Any]:
    body, stamp = json.dumps(said).encode(), str(int(time.time()))
    heads = {DELIVERY: said["id"], TIMESTAMP: stamp, SIGNATURE: sign(secret, stamp, said["id"], body)}
    return {"content": body, "headers": heads}


@dataclass
class Remote:
    """Slack and Perdure, as the receiver reaches them."""

    calls: list[tuple[str, dict[str, Any], str]] = field(default_factory=list)
    fails: bool = False
    refuses: str = ""

    def __call__(self, request: httpx.Request) -> httpx.Response:
        said = json.loads(request.content)
        self.calls.append((request.url.path.rpartition("/")[2], said, request.headers["authorization"]))
        if request.url.host == "perdure.test":
            if self.refuses:
                return httpx.Response(403, json={"error": {"message": self.refuses}})
            return httpx.Response(200, json={})
        return httpx.Response(200, json={"ok": not self.fails, "channel": "C1", "ts": f"{len(self.calls)}.0"})

    def of(self, method: str) -> list[dict[str, Any]]:
        return [said for name, said, _ in self.calls if name == method]


@asynccontextmanager
async def client_of(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://receiver") as client:
        yield client


@pytest.fixture
def remote() -> Remote:
    return Remote()


@pytest.fixture
async def receiver(remote: Remote, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    config = SlackConfig("https://perdure.test", SECRET, "xoxb", SIGNING, "C1", {"U1": "perdure_ann_token"})
    http = httpx.AsyncClient(transport=httpx.MockTransport(remote))
    async with client_of(slack.create_receiver(config, ReceiverState(tmp_path / "state.db"), http)) as client:
        yield client
    await http.aclose()


async def press(
    receiver: httpx.AsyncClient, user: str, decision: str = "approve", *, secret: str = SIGNING, age: int = 0
) -> int:
    value = json.dumps({"id": "a-1", "digest": "d" * 64, "revision": 2})
    payload = {"user": {"id": user}, "channel": {"id": "C1"}, "actions": [{"action_id": decision, "value": value}]}
    body, stamp = urlencode({"payload": json.dumps(payload)}).encode(), str(int(time.time()) - age)
    mac = hmac.new(secret.encode(), f"v0:{stamp}:".encode() + body, hashlib.sha256).hexdigest()
    heads = {"x-slack-request-timestamp": stamp, "x-slack-signature": f"v0={mac}"}
    return (await receiver.post("/slack/actions", content=body, headers=heads)).status_code


async def tell(receiver: httpx.AsyncClient, *said: dict[str, Any]) -> None:
    """Notices that are taken."""
    for each in said:
        assert (await receiver.post("/perdure", **signed(each))).status_code == 204


def text_of(message: dict[str, Any]) -> str:
    return json.dumps(message, ensure_ascii=False)


async def test_an_approval_has_one_message_that_is_updated(receiver: httpx.AsyncClient, remote: Remote) -> None:
    await tell(receiver, notice(), notice(2, status="approved", version=2, decision="approve", decided_by="ann"))
    (posted,), (updated,) = remote.of("chat.postMessage"), remote.of("chat.update")
    assert "https://perdure.test/review/a-1" in text_of(posted) and "approve" in text_of(posted["blocks"])
    assert (updated["channel"], updated["ts"]) == ("C1", "1.0")
    assert "ann" in updated["text"] and "note" in updated["text"]
    assert "actions" not in text_of(updated["blocks"]), "its buttons are gone"


async def test_repeated_or_older_notices_change_nothing(receiver: httpx.AsyncClient, remote: Remote) -> None:
    first, again = (notice(number, status="expired", version=2) for number in (2, 3))
    await tell(receiver, first, first, notice(1), again)
    assert len(remote.calls) == 1


async def test_simultaneous_or_retried_notices_make_one_message(receiver: httpx.AsyncClient, remote: Remote) -> None:
    remote.fails = True
    assert (await receiver.post("/perdure", **signed(notice()))).status_code == 502, "Perdure sends it again"
    remote.fails = False
    remote.calls.clear()
    again = [receiver.post("/perdure", **signed(notice(number))) for number in (1, 1, 2, 3)]
    assert {answer.status_code for answer in await asyncio.gather(*again)} == {204}
    assert len(remote.of("chat.postMessage")) == 1


@pytest.mark.parametrize("sent", [signed(notice(), "x" * 64), {"content": b"{}"}, {"content": b"x" * 70_000}])
async def test_an_unsigned_notice_is_refused(sent: dict[str, Any], receiver: httpx.AsyncClient, remote: Remote) -> None:
    assert (await receiver.post("/perdure", **sent)).status_code in (400, 413)
    assert not remote.calls


@pytest.mark.parametrize("changed", [
    {"risk": "medium"}, {"risk": "high"}, {"args": {"text": "x" * 2_000}}, {"status": "approved", "version": 2},
])  # fmt: skip
async def test_only_a_low_risk_request_shown_completely_has_buttons(
    changed: dict[str, Any], receiver: httpx.AsyncClient, remote: Remote
) -> None:
    await tell(receiver, notice(**changed))
    assert "actions" not in text_of(remote.of("chat.postMessage")[0]["blocks"])


async def test_markup_in_a_call_is_shown_as_text(receiver: httpx.AsyncClient, remote: Remote) -> None:
    hostile = {"text": "<!channel> <https://evil.test|Approved> ``` *bold* \u202e\x1b[31m"}
    await tell(receiver, notice(args=hostile, requested_by="<@U1>"))
    said = text_of(remote.of("chat.postMessage")[0])
    for inert in ("<!channel>", "<!here>", "<https://evil.test", "<@U1>", "\u202e", "\x1b"):
        assert inert not in said
    assert said.count("```") == 2, "the block that holds it ends where it should"


async def test_a_button_decides_as_the_linked_person(receiver: httpx.AsyncClient, remote: Remote) -> None:
    assert await press(receiver, "U1") == 200
    assert await press(receiver, "U1", "reject") == 200
    (_, approve, token), (_, reject, _) = remote.calls
    assert token == "Bearer perdure_ann_token", "never the bot's"
    assert approve == {"decision": "approve", "digest": "d" * 64, "revision": 2}
    assert (reject["decision"], reject["reason_code"]) == ("reject", "from_chat")


async def test_unlinked_and_refused_users_decide_nothing(receiver: httpx.AsyncClient, remote: Remote) -> None:
    await press(receiver, "U2")
    assert not remote.of("decision")
    remote.refuses = "this is your own request"
    await press(receiver, "U1")
    told = [(said["user"], remote.refuses in said["text"]) for said in remote.of("chat.postEphemeral")]
    assert told == [("U2", False), ("U1", True)]


@pytest.mark.parametrize(("secret", "age"), [("another", 0), (SIGNING, 301), (SIGNING, -301)])
async def test_forged_and_old_are_refused(secret: str, age: int, receiver: httpx.AsyncClient, remote: Remote) -> None:
    assert await press(receiver, "U1", secret=secret, age=age) == 401
    assert not remote.calls


@pytest.mark.parametrize(("receiver", "given", "named"), [
    *((mail, {name: ""}, name) for name in mail._REQUIRED),
    *((slack, {name: ""}, name) for name in ("PERDURE_URL", "SLACK_CHANNEL", "SLACK_PEOPLE", *slack._SECRETS)),
    *((slack, {name: "ü"}, name) for name in slack._SECRETS),
    *((mail, {name: "port"}, name) for name in ("SMTP_PORT", "RECEIVER_PORT")),
    (mail, {"RECEIVER_BOOK": "/no/such/book"}, "/no/such/book"),
    (slack, {"SLACK_PEOPLE": "/no/such/people"}, "/no/such/people"),
])  # fmt: skip
def test_an_invalid_setting_is_refused_by_name(
    receiver: Any, given: dict[str, str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**SET, **given}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match=named) as ended:
        receiver.main()
    assert "\n" not in str(ended.value)


@dataclass
class MailServer:
    mails: list[str] = field(default_factory=list)
    port: int = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 here\r\n")
        while line := await reader.readline():
            word = line.split()[0].upper() if line.split() else b""
            if word == b"DATA":
                writer.write(b"354 go on\r\n")
                self.mails.append((await reader.readuntil(b"\r\n.\r\n")).decode())
            writer.write(b"221 bye\r\n" if word == b"QUIT" else b"250 fine\r\n")
            await writer.drain()
            if word == b"QUIT":
                break
        writer.close()


@pytest.fixture
async def mail_server() -> AsyncIterator[MailServer]:
    made = MailServer()
    server = await asyncio.start_server(made.talk, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    server.close()
    await server.wait_closed()


async def test_a_mail_shows_the_request_and_its_thread_the_outcome(mail_server: MailServer, tmp_path: Path) -> None:
    to = ("a@corp.test", "b@corp.test")
    config = MailConfig(SECRET, "perdure@corp.test", to, "127.0.0.1", mail_server.port, "none")
    app = mail.create_receiver(config, ReceiverState(tmp_path / "state.db"))
    rejected = notice(3, status="rejected", version=3, decision="reject", decided_by="ann")
    async with client_of(app) as receiver:
        await tell(receiver, notice(1), notice(2, version=2, assignee="carl"), rejected)
    asked, answered = mail_server.mails
    assert "\r\nSubject: " in asked and "note" in asked and "https://perdure.test/review/a-1" in asked
    assert "To: a@corp.test, b@corp.test" in asked and "hi" not in asked.rpartition("\r\n\r\n")[2].split()
    assert "\r\nSubject: Re: " in answered and "note" in answered and "ann" in answered
    assert "In-Reply-To: <n-1@corp.test>" in answered


async def test_an_unavailable_mail_server_makes_perdure_retry(tmp_path: Path) -> None:
    config = MailConfig(SECRET, "perdure@corp.test", ("a@corp.test",), "127.0.0.1", 9, "none")
    async with client_of(mail.create_receiver(config, ReceiverState(tmp_path / "state.db"))) as receiver:
        assert (await receiver.post("/perdure", **signed(notice()))).status_code == 502
