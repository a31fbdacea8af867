"""The command line of the embedded Temporal."""

from itertools import pairwise
from pathlib import Path

import pytest

from perdure.local.data_dir import StackError
from perdure.local.temporal_server import TemporalPorts, command, synchronous_setting


def test_temporal_gets_the_settings_of_the_measured_figures() -> None:
    ports = TemporalPorts(1, 2, 3, 4)
    words = command(Path("/temporal"), "temporal.db", ports)
    pairs = {f"{flag}={value}" for flag, value in pairwise(words)}
    assert pairs >= {
        "--dynamic-config-value=system.enableActivityEagerExecution=true",
        "--dynamic-config-value=history.transferProcessorMaxPollRPS=2000",
        "--sqlite-pragma=journal_mode=wal",
        "--metrics-port=4",
        f'--dynamic-config-value=frontend.httpAllowedHosts=["{ports.api_host}"]',
        *(f"--search-attribute=Perdure{name}=Keyword" for name in ("Tenant", "Agent", "Conversation", "Status")),
    }
    assert "--headless" in words and not any(word.startswith("--ui") for word in words)
    assert ports.api_host != TemporalPorts(1, 2, 3, 4).api_host


def test_temporal_can_sync_every_write() -> None:
    assert synchronous_setting({}) == "normal"
    full = synchronous_setting({"PERDURE_TEMPORAL_SYNCHRONOUS": "full"})
    assert "synchronous=full" in command(Path("/temporal"), "temporal.db", TemporalPorts(1, 2, 3, 4), full)
    with pytest.raises(StackError, match="PERDURE_TEMPORAL_SYNCHRONOUS"):
        synchronous_setting({"PERDURE_TEMPORAL_SYNCHRONOUS": "off"})
