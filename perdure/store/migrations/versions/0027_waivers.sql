-- The tools that a tenant exempts from their approval, and the exemptions that a turn took over at its start.
SET LOCAL search_path = perdure;

ALTER TABLE tenants ADD COLUMN waived_tools text[] NOT NULL DEFAULT '{}';
GRANT UPDATE (waived_tools) ON tenants TO perdure_app;

ALTER TABLE turns ADD COLUMN waived_tools text[] NOT NULL DEFAULT '{}';

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
