"""The real payments service as a child process, over real HTTP."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from perdure.local.ports import free_port
from tests.eventually import wait_until

REFUNDS = Path(__file__).parents[3] / "perdure" / "examples" / "refunds"
TOKEN = "a-token-of-this-test"


class PaymentsProcess:
    """One service over one database file; may be killed and started again on the same port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        self.http = httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=10)

    def start(self) -> None:
        command = [sys.executable, "-m", "payments", "--port", str(self.port)]
        self._process = subprocess.Popen(
            [*command, "--db", str(self.folder / "payments.db")],
            cwd=REFUNDS,
            env={**os.environ, "PERDURE_SECRET_PAYMENTS_TOKEN": TOKEN},
            stdout=subprocess.DEVNULL,
        )
        wait_until_healthy(self.url, self._process)

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(timeout=10)
        self._process = None

    def close(self) -> None:
        self.kill()
        self.http.close()

    def counts(self, order: str) -> dict[str, int]:
        found: dict[str, int] = self.http.get("/ledger").json()["orders"].get(order, {"refund": 0, "note": 0})
        return found

    def requests(self, key: str) -> list[dict[str, object]]:
        return [request for request in self.http.get("/requests").json()["requests"] if request["key"] == key]

    def hold(self, point: str, seconds: float = 30.0, times: int = 1) -> None:
        fault = {"point": point, "delay_seconds": seconds, "times": times}
        assert self.http.post("/faults", json=fault).status_code == 201

    def wait_for_request(self, key: str) -> None:
        wait_until(lambda: self.requests(key), 10, key)

    def wait_for_refunds(self, order: str, number: int) -> None:
        wait_until(lambda: self.counts(order)["refund"] >= number, 10, order)


def wait_until_healthy(url: str, process: subprocess.Popen[bytes], path: str | None = "/healthz") -> None:
    def answers() -> bool:
        assert process.poll() is None, "the service ended at its start"
        try:
            return httpx.get(f"{url}{path}", trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    wait_until(answers, 60, url)
