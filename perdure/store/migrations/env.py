"""The alembic environment: one transaction as the owner, under a lock so that two starts cannot migrate together."""

from alembic import context
from sqlalchemy import create_engine, pool, text

from perdure.store.migrations import LOCK

# A pooler can be between: no prepared statements, and the lock belongs to the transaction.
arguments = {"prepare_threshold": None}
engine = create_engine(context.config.attributes["url"], poolclass=pool.NullPool, connect_args=arguments)
with engine.connect() as connection:
    context.configure(connection=connection)
    with context.begin_transaction():
        connection.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))
        context.run_migrations()
engine.dispose()
