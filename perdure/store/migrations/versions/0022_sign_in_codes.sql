-- Codes in links, by which a browser on the stack's own machine signs in, once.
SET LOCAL search_path = perdure;

CREATE TABLE sign_in_codes (
  code_sha256 text PRIMARY KEY,
  tenant_id text NOT NULL REFERENCES tenants,
  user_id uuid NOT NULL REFERENCES users,
  expires_at timestamptz NOT NULL
);
CREATE INDEX sign_in_codes_by_user ON sign_in_codes (user_id);

ALTER TABLE sign_in_codes ENABLE ROW LEVEL SECURITY;
ALTER TABLE sign_in_codes FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON sign_in_codes USING (tenant_id = current_setting('perdure.tenant', true))
  WITH CHECK (tenant_id = current_setting('perdure.tenant', true));

GRANT SELECT, INSERT, UPDATE, DELETE ON sign_in_codes TO perdure_app;

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
