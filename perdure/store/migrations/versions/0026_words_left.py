"""The partial text of a failed model call, for a turn that is stopped before the next attempt."""

from pathlib import Path
from typing import Any

from alembic import op

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    """Runs the SQL file of the same name. It runs directly on the driver, which then parses no placeholders."""
    driver: Any = op.get_bind().connection.driver_connection
    driver.execute(Path(__file__).with_suffix(".sql").read_text())
