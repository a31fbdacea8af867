"""What alembic runs: one transaction, as the owner, under a lock so that two starts do not migrate at once."""

from alembic import context
from sqlalchemy import create_engine, pool, text

_LOCK = 7_236_110
"""An advisory lock's number, ours by agreement."""

engine = create_engine(context.config.attributes["url"], poolclass=pool.NullPool)
with engine.connect() as connection:
    connection.execute(text(f"SELECT pg_advisory_lock({_LOCK})"))
    connection.commit()
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()
engine.dispose()
