"""The payments service of the demo: what it counts is what was done, through kill -9 as well."""

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.unit.apps.payments_process import ROOT, PaymentsProcess, free_port, wait_until_healthy

REFUND = {"order": "1042"}
NOTE = {"order": "1042", "text": "Sorry."}


def refund(payments: PaymentsProcess, key: str | None, body: dict[str, object] | None = None) -> httpx.Response:
    headers = {"Idempotency-Key": key} if key else {}
    return payments.http.post("/refunds", json=body or REFUND, headers=headers)


def test_the_same_key_makes_one_refund_and_gets_the_stored_answer(payments: PaymentsProcess) -> None:
    first, second = refund(payments, "k1"), refund(payments, "k1")
    assert first.status_code == second.status_code == 201
    assert first.json() == second.json()
    assert "Idempotent-Replay" not in first.headers and second.headers["Idempotent-Replay"] == "true"
    assert payments.counts() == {"refund": 1, "note": 0}


def test_the_same_key_with_another_body_is_refused(payments: PaymentsProcess) -> None:
    refund(payments, "k1")
    assert refund(payments, "k1", {"order": "1043"}).status_code == 422
    assert payments.counts()["refund"] == 1


def test_only_the_key_keeps_a_refund_from_being_made_twice(payments: PaymentsProcess) -> None:
    for key in ("k1", "k2", None, None):
        assert refund(payments, key).status_code == 201
    ledger = payments.http.get("/ledger").json()
    assert ledger["orders"] == {"1042": {"refund": 4, "note": 0}}
    assert [effect["key"] for effect in ledger["effects"]] == ["k1", "k2", None, None]
    assert payments.http.get("/orders/1042").json()["refunds"] == 4


def test_notes_know_no_keys(payments: PaymentsProcess) -> None:
    for _ in range(2):
        assert payments.http.post("/notes", json=NOTE, headers={"Idempotency-Key": "k1"}).status_code == 201
    assert payments.counts() == {"refund": 0, "note": 2}


def test_racing_requests_with_one_key_make_one_refund(payments: PaymentsProcess) -> None:
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: refund(payments, "k1").json(), range(32)))
    assert all(answer == answers[0] for answer in answers)
    assert payments.counts()["refund"] == 1
    assert payments.http.get("/requests").json()["count"] == 32


def test_counts_keys_and_requests_survive_kill_9(payments: PaymentsProcess) -> None:
    answer = refund(payments, "k1").json()
    payments.http.post("/notes", json=NOTE)
    ledger, requests = payments.http.get("/ledger").json(), payments.http.get("/requests").json()
    payments.kill()
    payments.start()
    assert payments.http.get("/ledger").json() == ledger
    assert payments.http.get("/requests").json() == requests
    assert refund(payments, "k1").json() == answer
    assert payments.counts() == {"refund": 1, "note": 1}


@pytest.mark.parametrize(("point", "made"), [("before_commit", 0), ("after_commit", 1)])
def test_killed_around_the_commit_it_made_the_refund_or_not_and_a_retry_makes_it_one(
    payments: PaymentsProcess, point: str, made: int
) -> None:
    payments.hold(point)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(refund, payments, "k1")
        payments.wait_for_requests(1)
        payments.wait_for_effects(made)
        payments.kill()
        assert isinstance(asked.exception(), httpx.TransportError)
    payments.start()
    assert payments.counts()["refund"] == made
    assert [request["status"] for request in payments.http.get("/requests").json()["requests"]] == [None]
    assert refund(payments, "k1").status_code == 201
    assert payments.counts()["refund"] == 1


def test_a_caller_that_gave_up_after_the_commit_gets_the_stored_answer(payments: PaymentsProcess) -> None:
    payments.hold("after_commit")
    with pytest.raises(httpx.ReadTimeout):
        payments.http.post("/refunds", json=REFUND, headers={"Idempotency-Key": "k1"}, timeout=0.5)
    assert payments.counts()["refund"] == 1
    assert refund(payments, "k1").headers["Idempotent-Replay"] == "true"


def test_a_fault_holds_as_often_as_it_says_and_only_its_kind(payments: PaymentsProcess) -> None:
    fault = {"point": "before_commit", "delay_seconds": 0.3, "times": 2, "kind": "refund"}
    payments.http.post("/faults", json=fault)
    payments.http.post("/notes", json=NOTE)
    assert payments.http.get("/faults").json()["faults"] == [fault]
    seconds = [refund(payments, None).elapsed.total_seconds() for _ in range(3)]
    assert seconds[0] >= 0.3 and seconds[1] >= 0.3 and seconds[2] < seconds[0]
    assert payments.http.get("/faults").json() == {"faults": []}


def test_lifting_the_faults_lets_go_who_is_held(payments: PaymentsProcess) -> None:
    payments.hold("before_commit", 60)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(refund, payments, "k1")
        payments.wait_for_requests(1)
        assert payments.http.delete("/faults").status_code == 204
        assert asked.result(timeout=5).status_code == 201


@pytest.mark.parametrize("path", ["/ledger", "/requests", "/faults", "/orders/1042"])
def test_without_the_credential_nothing_is_shown(payments: PaymentsProcess, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic é".encode()}):
        assert httpx.get(payments.url + path, headers=headers).status_code == 401


def test_without_the_credential_nothing_is_done(payments: PaymentsProcess) -> None:
    assert httpx.post(f"{payments.url}/refunds", json=REFUND).status_code == 401
    assert httpx.post(f"{payments.url}/notes", json=NOTE).status_code == 401
    assert payments.counts() == {"refund": 0, "note": 0}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/refunds", {"order": "0"}, 404),
        ("/refunds", {"order": "100000"}, 404),
        ("/refunds", {"order": "9" * 20}, 404),
        ("/refunds", {"order": "x"}, 404),
        ("/refunds", {"order": 1042}, 422),
        ("/refunds", {"order": "1042", "amount_cents": 0}, 422),
        ("/refunds", {"order": "1042", "amount_cents": 10_000_000}, 422),
        ("/refunds", {"order": "1042", "amount": 1}, 422),
        ("/notes", {"order": "1042", "text": ""}, 422),
        ("/notes", {"order": "0", "text": "Sorry."}, 404),
    ],
)
def test_what_makes_no_sense_is_refused_and_does_nothing(
    payments: PaymentsProcess, path: str, body: dict[str, object], status: int
) -> None:
    assert payments.http.post(path, json=body).status_code == status
    assert payments.counts() == {"refund": 0, "note": 0}


def test_a_part_can_be_refunded_and_leading_zeros_name_the_same_order(payments: PaymentsProcess) -> None:
    made = refund(payments, None, {"order": "0001042", "amount_cents": 250}).json()
    assert made == {"id": "refund-1", "order": "1042", "amount_cents": 250, "currency": "EUR"}


def test_it_stops_on_sigterm_even_while_it_holds_a_request(payments: PaymentsProcess) -> None:
    payments.hold("before_commit", 60)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(refund, payments, "k1")
        payments.wait_for_requests(1)
        assert payments.stop() == 0
        assert asked.exception() is not None or asked.result().status_code >= 500


def test_as_a_companion_it_takes_port_and_folder_from_the_stack_and_keeps_a_token_of_its_own(tmp_path: Path) -> None:
    port = free_port()
    given = {"PAYMENTS_PORT": str(port), "PERDURE_COMPANION_HOME": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "payments"],
        cwd=ROOT / "apps" / "refunds",
        env={"PATH": os.environ["PATH"], **given},
        stdout=subprocess.DEVNULL,
    )
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


def test_without_a_port_it_says_what_is_missing() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "apps.refunds.payments"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2
    assert "--port" in ended.stderr
