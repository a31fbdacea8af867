"""What Prometheus reads of an API process."""

from prometheus_client import Counter, Gauge, Histogram

REQUESTS = Histogram("perdure_http_request_seconds", "Time of a request", ["method", "route", "status"])
TURNS_STARTED = Counter("perdure_turns_started", "Turns accepted or queued", ["agent"])
DECISIONS = Counter("perdure_decisions", "Decisions taken on approvals", ["decision"])
STREAMS = Gauge("perdure_streams", "Event streams that are open now")
FRONT_DOOR = Counter("perdure_front_door", "Refusals before any route, and headers of unknown proxies", ["event"])
