-- The tables that code blocks compute with. A published agent names its tables by digest, so each is stored once, no
-- matter how many agents and versions need it, and it never changes. Like agents, tables belong to the shared tenant
-- '*', and only the owner writes them.
SET LOCAL search_path = perdure;

CREATE TABLE app_tables (
  tenant_id text NOT NULL REFERENCES tenants,
  digest text NOT NULL,
  name text NOT NULL,
  -- json, because jsonb would reorder the names of an object: blocks receive them in the author's order.
  body json NOT NULL,
  published_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, digest)
);

ALTER TABLE app_tables ENABLE ROW LEVEL SECURITY;
ALTER TABLE app_tables FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON app_tables USING (tenant_id = current_setting('perdure.tenant', true))
  WITH CHECK (tenant_id = current_setting('perdure.tenant', true));
CREATE POLICY shared_content ON app_tables FOR SELECT
  USING (tenant_id = '*' AND current_setting('perdure.tenant', true) <> '');
GRANT SELECT ON app_tables TO perdure_app, perdure_relay;

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
