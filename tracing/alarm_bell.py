"""Where alarms are heard: counted, logged, the last of them kept. It never raises and never waits (S3-39)."""

from collections import deque

import structlog
from prometheus_client import Counter

from contracts.alarms import Alarm, AlarmType

KEPT = 1_000
ALARMS = Counter("perdure_alarms", "Invariants that were found broken", ["type", "severity"])
_log = structlog.get_logger(__name__)


class AlarmBell:
    """The alarms of one process."""

    def __init__(self) -> None:
        self.recent: deque[Alarm] = deque(maxlen=KEPT)
        self._logged: set[tuple[AlarmType, str]] = set()

    def ring(self, alarm: Alarm) -> None:
        """Count it; log the first of its type and node, so that a thousand of them are one line."""
        self.recent.append(alarm)
        ALARMS.labels(type=alarm.type.value, severity=alarm.severity.value).inc()
        key = (alarm.type, alarm.node)
        if key not in self._logged and len(self._logged) < KEPT:
            self._logged.add(key)
            _log.warning("invariant_alarm", type=alarm.type.value, node=alarm.node, trace_id=alarm.trace_id)
