-- The outputs of the tools of a context assembly, for reuse by later turns of the conversation.
SET LOCAL search_path = perdure;

CREATE TABLE bundles (
  tenant_id text NOT NULL REFERENCES tenants,
  conversation_id uuid NOT NULL REFERENCES conversations,
  turn_id uuid NOT NULL REFERENCES turns,
  tool text NOT NULL,
  failed integer NOT NULL DEFAULT 0,  -- attempts, without those that ended with their worker
  output jsonb,
  outcome jsonb,  -- what the graph received
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  settled_at timestamptz,
  PRIMARY KEY (turn_id, tool)
);
CREATE INDEX bundles_of_conversation ON bundles (conversation_id, tool, created_at DESC) WHERE output IS NOT NULL;

ALTER TABLE bundles ENABLE ROW LEVEL SECURITY;
ALTER TABLE bundles FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON bundles USING (tenant_id = (SELECT current_setting('perdure.tenant', true)))
  WITH CHECK (tenant_id = (SELECT current_setting('perdure.tenant', true)));
GRANT SELECT, INSERT, UPDATE, DELETE ON bundles TO perdure_app, perdure_relay;

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
