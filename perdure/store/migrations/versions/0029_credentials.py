"""Who created each token, session, password and delegation."""

from pathlib import Path
from typing import Any

from alembic import op

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    """Run the SQL file beside this one; straight on the driver, which then reads no placeholders into it."""
    driver: Any = op.get_bind().connection.driver_connection
    driver.execute(Path(__file__).with_suffix(".sql").read_text())
