"""Migrations: plain SQL, run by alembic as the owner."""

from pathlib import Path

from alembic import command
from alembic.config import Config


def upgrade(owner_url: str) -> None:
    """Bring the schema to the newest version.

    Raises: SQLAlchemy's and psycopg's errors.
    """
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["url"] = "postgresql+psycopg://" + owner_url.partition("://")[2]
    command.upgrade(config, "head")
