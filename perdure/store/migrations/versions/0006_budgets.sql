-- What a tenant has used and reserved in a day. Days are UTC by the database's clock. A call counts for the day in
-- which it was claimed, whenever it is settled.

-- The operator's limits for all agents of a tenant together; an agent's own limits are in its definition. Without a
-- row, the tenant has never had a limit, and its use is not counted.
CREATE TABLE perdure.day_limits (
  tenant_id text PRIMARY KEY REFERENCES perdure.tenants,
  max_tokens bigint CHECK (max_tokens > 0),
  max_cost_microusd bigint CHECK (max_cost_microusd > 0),
  set_by uuid REFERENCES perdure.users,
  set_at timestamptz NOT NULL DEFAULT now()
);

-- Each call of a tenant updates its row twice: with free space on the page, no update touches the index.
CREATE TABLE perdure.day_usage (
  tenant_id text NOT NULL REFERENCES perdure.tenants,
  day date NOT NULL,
  agent_id text NOT NULL,  -- empty: all agents of the tenant
  used_tokens bigint NOT NULL DEFAULT 0 CHECK (used_tokens >= 0),
  used_cost_microusd bigint NOT NULL DEFAULT 0 CHECK (used_cost_microusd >= 0),
  held_tokens bigint NOT NULL DEFAULT 0 CHECK (held_tokens >= 0),
  held_cost_microusd bigint NOT NULL DEFAULT 0 CHECK (held_cost_microusd >= 0),
  PRIMARY KEY (tenant_id, day, agent_id)
) WITH (fillfactor = 20);

-- What a call has reserved, and in which rows of which day. A reservation belongs to the call's epoch.
ALTER TABLE perdure.model_calls
  ADD COLUMN budget_day date,
  ADD COLUMN budget_of text[],
  ADD COLUMN held_tokens bigint NOT NULL DEFAULT 0,
  ADD COLUMN held_cost_microusd bigint NOT NULL DEFAULT 0,
  ADD COLUMN fallback boolean NOT NULL DEFAULT false;

-- The first call that is counted in a day adds what the day's earlier calls have used. Rows are in the order of time,
-- so this index has a few bytes per hundred pages, and costs a claim nothing.
CREATE INDEX model_calls_by_start ON perdure.model_calls USING brin (started_at);

DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['day_limits', 'day_usage']
  LOOP
    EXECUTE format('ALTER TABLE perdure.%I ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format('ALTER TABLE perdure.%I FORCE ROW LEVEL SECURITY', t);
    EXECUTE format('CREATE POLICY own_tenant ON perdure.%I '
      'USING (tenant_id = current_setting(''perdure.tenant'', true)) '
      'WITH CHECK (tenant_id = current_setting(''perdure.tenant'', true))', t);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON perdure.%I TO perdure_app, perdure_relay', t);
  END LOOP;
END $$;
