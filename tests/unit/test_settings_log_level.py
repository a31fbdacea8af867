"""What a process logs: nothing below its level, also by loggers that were made before it was set."""

import pytest
import structlog

from perdure.settings import LogLevel, log_from

EARLY = structlog.get_logger("early")


def test_no_line_below_the_level_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        log_from(LogLevel.INFO)
        EARLY.debug("a vendor's words")
        EARLY.info("that it is ready")
    finally:
        structlog.reset_defaults()
    assert "vendor" not in (out := capsys.readouterr().out) and "ready" in out
