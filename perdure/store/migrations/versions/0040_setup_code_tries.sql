-- Wrong tries at the setup code make their address wait and never end the code. A code that ended is kept with its
-- reason, which the sign-in page tells.
--
-- This release does not use `setup_codes.wrong_tries`. The column stays for the API of the release before, which serves
-- until the end of an upgrade. A later release drops it.
SET LOCAL search_path = perdure;

ALTER TABLE setup_codes
  ADD COLUMN ended_at timestamptz,
  ADD COLUMN end_reason text,
  ADD CONSTRAINT end_has_reason CHECK ((ended_at IS NULL) = (end_reason IS NULL));

CREATE TABLE setup_code_tries (
  tenant_id text NOT NULL REFERENCES setup_codes ON DELETE CASCADE,
  address text NOT NULL,
  wrong_tries integer NOT NULL,
  last_at timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, address)
);
CREATE INDEX ON setup_code_tries (tenant_id, last_at);

ALTER TABLE setup_code_tries ENABLE ROW LEVEL SECURITY;
ALTER TABLE setup_code_tries FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON setup_code_tries
  USING (tenant_id = (SELECT current_setting('perdure.tenant', true)))
  WITH CHECK (tenant_id = (SELECT current_setting('perdure.tenant', true)));

GRANT SELECT, INSERT, UPDATE, DELETE ON setup_code_tries TO perdure_app;

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
