"""The payments service of the demo: what it counts is what was done, through kill -9 as well."""

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from perdure.local.ports import free_port
from tests.unit.examples.payments_process import REFUNDS, PaymentsProcess, wait_until_healthy


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
    ("/refunds", {"order": "0"}, 404),
    ("/refunds", {"order": "100000"}, 404),
    ("/refunds", {"order": "9" * 20}, 404),
    ("/refunds", {"order": "x"}, 404),
    ("/refunds", {"order": 999}, 422),
    ("/refunds", {"order": "999", "amount_cents": 0}, 422),
    ("/refunds", {"order": "999", "amount_cents": 10_000_000}, 422),
    ("/refunds", {"order": "999", "amount": 1}, 422),
    ("/notes", {"order": "999", "text": ""}, 422),
    ("/notes", {"order": "0", "text": "Sorry."}, 404),
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
