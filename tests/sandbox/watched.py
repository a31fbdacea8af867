"""A worker whose memory is watched from outside while it runs."""

import re
import threading
from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue

from perdure.activities.sandbox.protocol import Limits, Ran
from perdure.activities.sandbox.worker import Worker

_EVERY_SECONDS = 0.005


class WatchedWorker(Worker):
    """Keeps the peak of each run's resident memory, as the kernel tells it, in `peaks`, by the block's code."""

    peaks: dict[str, int] = {}

    def run(self, code: str, inputs: Mapping[str, JsonValue], limits: Limits) -> Ran:
        done = threading.Event()
        seen = [0]

        def watch() -> None:
            while not done.wait(_EVERY_SECONDS):
                seen.append(self._peak_bytes())

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            return super().run(code, inputs, limits)
        finally:
            done.set()
            watcher.join()
            self.peaks[code] = max(*seen, self._peak_bytes())

    def _peak_bytes(self) -> int:
        """Of its whole life; 0 when it is over."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return 0
        found = re.search(r"VmHWM:\s*(\d+) kB", status)
        return int(found[1]) * 1024 if found else 0
