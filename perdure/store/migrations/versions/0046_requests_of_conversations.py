"""An index of the requests of a conversation."""

from pathlib import Path
from typing import Any

from alembic import op

revision = "0046"
down_revision = "0045"


def upgrade() -> None:
    """Runs the SQL file of the same name. It runs directly on the driver, which then parses no placeholders."""
    driver: Any = op.get_bind().connection.driver_connection
    driver.execute(Path(__file__).with_suffix(".sql").read_text())
