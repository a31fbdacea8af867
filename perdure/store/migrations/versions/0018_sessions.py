"""People sign in: passwords, sessions with their refresh tokens, invitations, identities at other providers."""

from pathlib import Path
from typing import Any

from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    """Run the SQL file beside this one; straight on the driver, which then reads no placeholders into it."""
    driver: Any = op.get_bind().connection.driver_connection
    driver.execute(Path(__file__).with_suffix(".sql").read_text())
