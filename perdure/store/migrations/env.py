"""The alembic environment: one transaction as the owner, under a lock so that two starts cannot migrate together."""

from alembic import context
from sqlalchemy import create_engine, pool, text

from perdure.store.migrations import LOCK

engine = create_engine(context.config.attributes["url"], poolclass=pool.NullPool)
with engine.connect() as connection:
    connection.execute(text(f"SELECT pg_advisory_lock({LOCK})"))
    connection.commit()
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()
engine.dispose()
