"""The alembic environment: one transaction as the owner, under a lock so that two starts cannot migrate together.

Another start can take minutes, so only the locks of the migrations have a time limit.
"""

from alembic import context
from sqlalchemy import create_engine, pool, text

from perdure.store.migrations import LOCK, LOCK_SECONDS

# A pooler can be between: no prepared statements, and the lock belongs to the transaction.
arguments = {"prepare_threshold": None}
engine = create_engine(context.config.attributes["url"], poolclass=pool.NullPool, connect_args=arguments)
with engine.connect() as connection:
    context.configure(connection=connection)
    with context.begin_transaction():
        connection.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))
        connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_SECONDS * 1_000:.0f}ms'"))
        context.run_migrations()
engine.dispose()
