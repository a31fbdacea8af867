-- One row of the shared tenant, which each API process rewrites every few seconds: a server with a full disk, or one
-- that accepts no writes, still answers reads.
CREATE TABLE perdure.write_probes (
  tenant_id text PRIMARY KEY,
  at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 10);
ALTER TABLE perdure.write_probes ENABLE ROW LEVEL SECURITY;
ALTER TABLE perdure.write_probes FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON perdure.write_probes
  USING (tenant_id = current_setting('perdure.tenant', true))
  WITH CHECK (tenant_id = current_setting('perdure.tenant', true));
GRANT SELECT, INSERT, UPDATE, DELETE ON perdure.write_probes TO perdure_app;
