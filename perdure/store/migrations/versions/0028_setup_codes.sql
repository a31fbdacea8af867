-- The code with which the first user of a tenant registers as its administrator. Postgres stores only the hash.
SET LOCAL search_path = perdure;

CREATE TABLE setup_codes (
  tenant_id text PRIMARY KEY REFERENCES tenants,
  code_sha256 text NOT NULL,
  expires_at timestamptz NOT NULL,
  wrong_tries integer NOT NULL DEFAULT 0
);

ALTER TABLE setup_codes ENABLE ROW LEVEL SECURITY;
ALTER TABLE setup_codes FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON setup_codes USING (tenant_id = current_setting('perdure.tenant', true))
  WITH CHECK (tenant_id = current_setting('perdure.tenant', true));

-- The owner creates codes (perdure/apps/bootstrap.py); the API counts wrong tries and deletes a used code.
GRANT SELECT, UPDATE, DELETE ON setup_codes TO perdure_app;

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
