"""The refunds agent's tools against the real payments service: what each outcome means for the effect; and the service
itself, which counts what was done, through kill -9 as well."""

import os
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import JsonValue

from perdure.apps import SHIPPED, load_app
from perdure.contracts.calls import EffectClass
from perdure.core.calls.arguments import check_arguments
from perdure.local.ports import free_port
from perdure.sdk.tools import Tool, ToolContext, ToolRefused, ToolUnavailable
from tests.local_egress import new_client
from tests.unit.apps.tool_contexts import context
from tests.unit.examples.payments_process import REFUNDS, TOKEN, PaymentsProcess, wait_until_healthy


@pytest.fixture(scope="module")
def tools() -> Mapping[str, Tool]:
    return load_app(SHIPPED / "refunds").tools


@dataclass(frozen=True, slots=True)
class ToolCaller:
    tools: Mapping[str, Tool]
    http: httpx.AsyncClient
    url: str
    key: str

    def context(self, name: str, seconds: float = 10.0) -> ToolContext:
        secrets = {"payments_url": self.url, "payments_token": TOKEN}
        return context(self.tools[name].card, http=self.http, secrets=secrets, seconds=seconds, key=self.key)

    async def run(self, name: str, args: dict[str, Any], seconds: float = 10.0) -> dict[str, Any]:
        output: Any = (await self.tools[name].run(args, self.context(name, seconds))).output
        return dict(output)


@pytest.fixture
async def caller(tools: Mapping[str, Tool], payments: PaymentsProcess, key: str) -> AsyncIterator[ToolCaller]:
    async with new_client() as client:
        yield ToolCaller(tools, client, payments.url, key)


def test_the_cards_state_effect_gate_and_risk(tools: Mapping[str, Tool]) -> None:
    cards = {name: tool.card for name, tool in tools.items()}
    assert {name: (card.effect, card.needs_approval) for name, card in cards.items()} == {
        "order_status": (EffectClass.READ, False),
        "refund": (EffectClass.KEYED, True),
        "send_note": (EffectClass.OPAQUE, True),
    }
    assert cards["refund"].risk == "high" and cards["refund"].key_ttl_seconds == 2_592_000


@pytest.mark.parametrize(
    ("cents", "fits"), [(1, True), (18_900, True), (0, False), (1_000_000, False), (10**15, False)]
)
def test_an_absurd_amount_never_fits(tools: Mapping[str, Tool], cents: int, fits: bool) -> None:
    checked = check_arguments({"order": "1042", "amount_cents": cents}, tools["refund"].card.parameters)
    assert (checked.fault is None) == fits


@pytest.mark.parametrize(("name", "args", "again"), [("refund", {}, 1), ("send_note", {"text": "Sorry."}, 2)])
async def test_no_answer_in_time_is_ambiguous_and_only_a_key_heals_it(
    caller: ToolCaller, payments: PaymentsProcess, order: str, name: str, args: dict[str, Any], again: int
) -> None:
    payments.hold("after_commit")
    with pytest.raises(TimeoutError):
        await caller.run(name, {"order": order, **args}, seconds=0.7)
    assert sum(payments.counts(order).values()) == 1
    await caller.run(name, {"order": order, **args})
    assert sum(payments.counts(order).values()) == again


@pytest.mark.parametrize(("name", "args"), [("order_status", {}), ("refund", {}), ("send_note", {"text": "Sorry."})])
async def test_an_unavailable_service_was_sent_nothing(caller: ToolCaller, name: str, args: dict[str, Any]) -> None:
    with pytest.raises(ToolUnavailable):
        await replace(caller, url=f"http://127.0.0.1:{free_port()}").run(name, {"order": "1", **args})


async def test_an_unknown_order_and_a_missing_credential_are_refusals(caller: ToolCaller) -> None:
    with pytest.raises(ToolRefused, match="999999"):
        await caller.run("refund", {"order": "999999"})
    with pytest.raises(ToolRefused, match="payments_url"):
        await replace(caller, url="").run("refund", {"order": "1"})


async def test_the_preview_of_a_refund_reads_the_order_and_leaves_it_as_it_is(caller: ToolCaller, order: str) -> None:
    preview = caller.tools["refund"].preview
    args: dict[str, JsonValue] = {"order": order, "amount_cents": 150, "reason": "late"}
    assert preview is not None
    look = replace(caller.context("refund"), reads_only=True)
    made = await preview.make(args, look)
    assert isinstance(made.before, dict) and made.before["refunds"] == 0
    assert made.after == {**made.before, "refunds": 1, "paid_back_now": "1.50 EUR"}
    assert await preview.make(args, look) == made


def refund(payments: PaymentsProcess, order: str, key: str | None, **more: object) -> httpx.Response:
    headers = {"Idempotency-Key": key} if key else {}
    return payments.http.post("/refunds", json={"order": order, **more}, headers=headers)


def send_note(payments: PaymentsProcess, order: str, key: str = "") -> httpx.Response:
    return payments.http.post("/notes", json={"order": order, "text": "Sorry."}, headers={"Idempotency-Key": key})


def test_a_key_makes_one_refund_and_refuses_another_body(payments: PaymentsProcess, order: str, key: str) -> None:
    first, second = refund(payments, order, key), refund(payments, order, key)
    assert first.status_code == second.status_code == 201
    assert first.json() == second.json()
    assert "Idempotent-Replay" not in first.headers and second.headers["Idempotent-Replay"] == "true"
    assert refund(payments, order, key, amount_cents=1).status_code == 422
    assert payments.counts(order) == {"refund": 1, "note": 0}


def test_only_the_idempotency_key_prevents_a_second_refund(payments: PaymentsProcess, order: str, key: str) -> None:
    for given in (key, f"{key}-b", None, None):
        assert refund(payments, order, given).status_code == 201
    effects = payments.http.get("/ledger").json()["effects"]
    assert [effect["key"] for effect in effects if effect["order"] == order] == [key, f"{key}-b", None, None]
    assert payments.http.get(f"/orders/{order}").json()["refunds"] == 4


def test_notes_ignore_idempotency_keys(payments: PaymentsProcess, order: str, key: str) -> None:
    assert [send_note(payments, order, key).status_code for _ in range(2)] == [201, 201]
    assert payments.counts(order) == {"refund": 0, "note": 2}


def test_racing_requests_with_one_key_make_one_refund(payments: PaymentsProcess, order: str, key: str) -> None:
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: refund(payments, order, key).json(), range(32)))
    assert all(answer == answers[0] for answer in answers)
    assert payments.counts(order)["refund"] == 1
    assert len(payments.requests(key)) == 32


@pytest.mark.parametrize(
    ("point", "made"), [pytest.param("before_commit", 0, marks=pytest.mark.soak), ("after_commit", 1)]
)
def test_one_refund_after_a_kill(own_payments: PaymentsProcess, order: str, key: str, point: str, made: int) -> None:
    own_payments.hold(point)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(refund, own_payments, order, key)
        own_payments.wait_for_request(key)
        own_payments.wait_for_refunds(order, made)
        own_payments.kill()
        assert isinstance(asked.exception(), httpx.TransportError)
    own_payments.start()
    assert own_payments.counts(order)["refund"] == made
    assert [request["status"] for request in own_payments.requests(key)] == [None]
    assert refund(own_payments, order, key).status_code == 201
    assert own_payments.counts(order)["refund"] == 1


def test_a_fault_holds_as_often_as_it_says_and_only_its_kind(payments: PaymentsProcess, order: str) -> None:
    fault = {"point": "before_commit", "delay_seconds": 0.3, "times": 2, "kind": "refund"}
    payments.http.post("/faults", json=fault)
    send_note(payments, order)
    assert payments.http.get("/faults").json()["faults"] == [fault]
    assert min([refund(payments, order, None).elapsed.total_seconds() for _ in range(2)]) >= 0.3
    assert payments.http.get("/faults").json() == {"faults": []}
    assert refund(payments, order, None).status_code == 201


def test_lifting_the_faults_releases_held_requests(payments: PaymentsProcess, order: str, key: str) -> None:
    payments.hold("before_commit", 60)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(refund, payments, order, key)
        payments.wait_for_request(key)
        assert payments.http.delete("/faults").status_code == 204
        assert asked.result(timeout=10).status_code == 201


@pytest.mark.parametrize("path", ["/ledger", "/requests", "/faults", "/orders/999"])
def test_without_the_credential_nothing_is_shown_or_done(payments: PaymentsProcess, order: str, path: str) -> None:
    for credential in ("", "Bearer wrong", "Basic é"):
        assert httpx.get(payments.url + path, headers={b"Authorization": credential.encode()}).status_code == 401
    for effect in ("/refunds", "/notes"):
        assert httpx.post(payments.url + effect, json={"order": order, "text": "Sorry."}).status_code == 401
    assert payments.counts(order) == {"refund": 0, "note": 0}


@pytest.mark.parametrize(("path", "body", "status"), [
    ("/refunds", {"order": "0"}, 404), ("/refunds", {"order": "100000"}, 404), ("/refunds", {"order": "9" * 20}, 404),
    ("/refunds", {"order": "x"}, 404), ("/refunds", {"order": 999}, 422),
    ("/refunds", {"order": "999", "amount_cents": 0}, 422),
    ("/refunds", {"order": "999", "amount_cents": 10_000_000}, 422), ("/refunds", {"order": "999", "amount": 1}, 422),
    ("/notes", {"order": "999", "text": ""}, 422), ("/notes", {"order": "0", "text": "Sorry."}, 404),
])  # fmt: skip
def test_bad_requests_are_refused(payments: PaymentsProcess, path: str, body: dict[str, object], status: int) -> None:
    before = payments.http.get("/ledger").json()
    assert payments.http.post(path, json=body).status_code == status
    assert payments.http.get("/ledger").json() == before


def test_a_part_can_be_refunded_and_leading_zeros_name_the_same_order(payments: PaymentsProcess, order: str) -> None:
    made = refund(payments, f"000{order}", None, amount_cents=250).json()
    assert made["order"] == order and made["amount_cents"] == 250 and made["currency"] == "EUR"
    assert payments.counts(order)["refund"] == 1


def test_it_stops_on_sigterm_even_while_it_holds_a_request(own_payments: PaymentsProcess, order: str, key: str) -> None:
    own_payments.hold("before_commit", 60)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(refund, own_payments, order, key)
        own_payments.wait_for_request(key)
        own_payments.stop()
        assert asked.exception() is not None or asked.result().status_code >= 500


def test_as_a_companion_it_takes_port_and_folder_from_the_stack_and_keeps_a_token_of_its_own(tmp_path: Path) -> None:
    port = free_port()
    given = {"PAYMENTS_PORT": str(port), "PERDURE_COMPANION_HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-m", "payments"]
    process = subprocess.Popen(command, cwd=REFUNDS, env=given, stdout=subprocess.DEVNULL)
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}", process)
        kept = tmp_path / "token"
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        headers = {"Authorization": f"Bearer {kept.read_text()}"}
        assert len(kept.read_text()) > 30
        assert httpx.get(f"http://127.0.0.1:{port}/ledger", headers=headers).status_code == 200
        assert (tmp_path / "payments.db").exists()
    finally:
        process.kill()
        process.wait()


def test_without_a_port_the_service_names_what_is_missing() -> None:
    command, environ = [sys.executable, "-m", "payments"], {"PATH": os.environ["PATH"]}
    ended = subprocess.run(command, cwd=REFUNDS, env=environ, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "--port" in ended.stderr
