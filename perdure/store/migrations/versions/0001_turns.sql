-- Every table has tenant_id and forced row-level security: if no tenant is set, every query returns zero rows. Ids are
-- UUIDs that the program creates. Times are from the database's clock, the only clock that decides.

CREATE SCHEMA perdure AUTHORIZATION perdure_owner;
SET LOCAL search_path = perdure;

CREATE TABLE tenants (
  tenant_id text PRIMARY KEY CHECK (tenant_id ~ '^[a-z0-9][a-z0-9-]{0,62}$' OR tenant_id = '*'),
  created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE users (
  id uuid PRIMARY KEY,
  tenant_id text NOT NULL REFERENCES tenants,
  name text NOT NULL,
  display_name text NOT NULL DEFAULT '',
  roles text[] NOT NULL DEFAULT '{}',
  created_at timestamptz NOT NULL DEFAULT now(),
  disabled_at timestamptz,
  UNIQUE (tenant_id, name)
);

CREATE TABLE api_tokens (
  token_sha256 text PRIMARY KEY,
  tenant_id text NOT NULL REFERENCES tenants,
  user_id uuid NOT NULL REFERENCES users,
  label text NOT NULL DEFAULT '',
  created_at timestamptz NOT NULL DEFAULT now(),
  revoked_at timestamptz
);

-- Content is published for the shared tenant '*', which every tenant can read and only the owner can write.
CREATE TABLE agent_versions (
  tenant_id text NOT NULL REFERENCES tenants,
  agent_id text NOT NULL,
  version text NOT NULL,
  body jsonb NOT NULL,
  published_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, agent_id, version)
);

CREATE TABLE agents (
  tenant_id text NOT NULL REFERENCES tenants,
  agent_id text NOT NULL,
  version text NOT NULL,
  app text NOT NULL DEFAULT '',
  PRIMARY KEY (tenant_id, agent_id),
  FOREIGN KEY (tenant_id, agent_id, version) REFERENCES agent_versions
);

CREATE TABLE conversations (
  id uuid PRIMARY KEY,
  tenant_id text NOT NULL REFERENCES tenants,
  user_id uuid NOT NULL REFERENCES users,
  agent_id text NOT NULL,
  title text NOT NULL DEFAULT '',
  metadata jsonb NOT NULL DEFAULT '{}',
  active_turn_id uuid,
  event_seq bigint NOT NULL DEFAULT 0,
  message_seq bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  deleted_at timestamptz
);
CREATE INDEX conversations_by_user ON conversations (tenant_id, user_id, updated_at DESC, id DESC)
  WHERE deleted_at IS NULL;

CREATE TABLE turns (
  id uuid PRIMARY KEY,
  tenant_id text NOT NULL REFERENCES tenants,
  conversation_id uuid NOT NULL REFERENCES conversations,
  user_id uuid NOT NULL REFERENCES users,
  agent_id text NOT NULL,
  agent_version text NOT NULL,
  topology text NOT NULL,
  status text NOT NULL CHECK (status IN ('accepted','queued','running','awaiting_approval','awaiting_answer',
    'completed','failed','limited','stopped','replaced')),
  routing jsonb NOT NULL,
  limits jsonb NOT NULL,
  metadata jsonb NOT NULL DEFAULT '{}',
  system_prompt text,
  message_id uuid NOT NULL,
  through_seq bigint NOT NULL,
  memory_text text,
  waiting jsonb,
  problem jsonb,
  answer text,
  input_tokens bigint NOT NULL DEFAULT 0,
  output_tokens bigint NOT NULL DEFAULT 0,
  cached_tokens bigint NOT NULL DEFAULT 0,
  cost_microusd bigint NOT NULL DEFAULT 0,
  attempts integer NOT NULL DEFAULT 0,
  events_through integer NOT NULL DEFAULT 0,
  stop_requested_at timestamptz,
  rung_at timestamptz,
  created_at timestamptz NOT NULL DEFAULT now(),
  started_at timestamptz,
  ended_at timestamptz
);
CREATE INDEX turns_by_conversation ON turns (conversation_id, created_at, id);
CREATE INDEX turns_by_user ON turns (tenant_id, user_id, created_at DESC, id DESC);
CREATE INDEX turns_open ON turns (tenant_id, created_at) WHERE ended_at IS NULL;

CREATE TABLE messages (
  id uuid PRIMARY KEY,
  tenant_id text NOT NULL REFERENCES tenants,
  conversation_id uuid NOT NULL REFERENCES conversations,
  turn_id uuid NOT NULL REFERENCES turns DEFERRABLE INITIALLY DEFERRED,
  seq bigint NOT NULL,
  role text NOT NULL CHECK (role IN ('system','user','assistant','tool')),
  content text NOT NULL,
  calls jsonb NOT NULL DEFAULT '[]',
  call_id text,
  tokens integer NOT NULL DEFAULT 0,
  partial boolean NOT NULL DEFAULT false,
  in_transcript boolean NOT NULL DEFAULT true,
  created_at timestamptz NOT NULL DEFAULT now(),
  UNIQUE (conversation_id, seq)
);

CREATE TABLE model_calls (
  tenant_id text NOT NULL REFERENCES tenants,
  turn_id uuid NOT NULL REFERENCES turns,
  call_id text NOT NULL,
  epoch integer NOT NULL,
  run_id text NOT NULL,
  attempt integer NOT NULL,
  errors integer NOT NULL DEFAULT 0,
  reply jsonb,
  model text NOT NULL,
  started_at timestamptz NOT NULL DEFAULT now(),
  settled_at timestamptz,
  PRIMARY KEY (turn_id, call_id)
);

-- The ledger: one row per tool call, of any effect class. An effect is unique by (turn, call id).
CREATE TABLE tool_calls (
  tenant_id text NOT NULL REFERENCES tenants,
  turn_id uuid NOT NULL REFERENCES turns,
  call_id text NOT NULL,
  conversation_id uuid NOT NULL REFERENCES conversations,
  agent_id text NOT NULL,
  key text NOT NULL UNIQUE,
  tool text NOT NULL,
  tool_version text NOT NULL,
  effect text NOT NULL CHECK (effect IN ('read','local','keyed','opaque')),
  provider_call_id text NOT NULL DEFAULT '',
  args jsonb NOT NULL,
  digest text NOT NULL,
  state text NOT NULL DEFAULT 'planned'
    CHECK (state IN ('planned','reserved','done','failed','denied','outcome_unknown')),
  epoch integer NOT NULL DEFAULT 0,
  run_id text NOT NULL DEFAULT '',
  attempt integer NOT NULL DEFAULT 0,
  errors integer NOT NULL DEFAULT 0,
  deadline timestamptz,
  quiet_at timestamptz,
  first_sent_at timestamptz,
  outcome jsonb,
  lost_settles integer NOT NULL DEFAULT 0,
  settled_by uuid REFERENCES users,
  comment text,
  created_at timestamptz NOT NULL DEFAULT now(),
  settled_at timestamptz,
  PRIMARY KEY (turn_id, call_id)
);
CREATE INDEX tool_calls_unknown ON tool_calls (tenant_id, created_at) WHERE state = 'outcome_unknown';

CREATE TABLE approvals (
  id uuid PRIMARY KEY,
  tenant_id text NOT NULL REFERENCES tenants,
  conversation_id uuid NOT NULL REFERENCES conversations,
  turn_id uuid NOT NULL REFERENCES turns,
  call_id text NOT NULL,
  agent_id text NOT NULL,
  tool text NOT NULL,
  tool_version text NOT NULL,
  effect text NOT NULL,
  risk text NOT NULL,
  description text NOT NULL DEFAULT '',
  args jsonb NOT NULL,
  schema jsonb NOT NULL,
  digest text NOT NULL,
  nonce text NOT NULL,
  rule text NOT NULL,
  prompt_excerpt text NOT NULL DEFAULT '',
  snapshot jsonb NOT NULL DEFAULT '{}',
  requested_by uuid NOT NULL REFERENCES users,
  reviewer_role text NOT NULL,
  allow_self_approval boolean NOT NULL DEFAULT false,
  status text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending','approved','edited','rejected','responded',
    'expired','cancelled','withdrawn','reserved','done','failed','outcome_unknown')),
  requested_at timestamptz NOT NULL DEFAULT now(),
  expires_at timestamptz NOT NULL,
  version integer NOT NULL DEFAULT 1,
  decision jsonb,
  decided_by uuid REFERENCES users,
  decided_at timestamptz,
  UNIQUE (tenant_id, turn_id, call_id)
);
CREATE INDEX approvals_by_status ON approvals (tenant_id, status, requested_at DESC, id DESC);
CREATE INDEX approvals_by_turn ON approvals (turn_id);

CREATE TABLE audit (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id text NOT NULL REFERENCES tenants,
  at timestamptz NOT NULL DEFAULT now(),
  kind text NOT NULL,
  actor uuid,
  turn_id uuid,
  subject text NOT NULL,
  data jsonb NOT NULL
);
CREATE INDEX audit_by_subject ON audit (tenant_id, subject, id);
CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN RAISE EXCEPTION 'audit rows are append-only'; END $$;
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
  FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only();

CREATE TABLE events (
  tenant_id text NOT NULL REFERENCES tenants,
  conversation_id uuid NOT NULL REFERENCES conversations,
  seq bigint NOT NULL,
  turn_id uuid NOT NULL,
  kind text NOT NULL,
  call_id text,
  data jsonb NOT NULL,
  at timestamptz NOT NULL,
  PRIMARY KEY (conversation_id, seq)
);
CREATE INDEX events_by_turn ON events (turn_id, seq);

-- Contains only ids. The process that commits a row can deliver it at once; the relay delivers rows that remain when
-- they are due.
CREATE TABLE outbox (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id text NOT NULL REFERENCES tenants,
  kind text NOT NULL CHECK (kind IN ('start','ring','stop')),
  turn_id uuid NOT NULL,
  request_id text NOT NULL DEFAULT '',
  due_at timestamptz NOT NULL DEFAULT now(),
  attempts integer NOT NULL DEFAULT 0
);
CREATE INDEX outbox_due ON outbox (due_at, id);

CREATE TABLE idempotency (
  tenant_id text NOT NULL REFERENCES tenants,
  user_id uuid NOT NULL REFERENCES users,
  route text NOT NULL,
  key text NOT NULL,
  body_digest text NOT NULL,
  status integer NOT NULL,
  answer jsonb NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, user_id, route, key)
);
CREATE INDEX idempotency_age ON idempotency (created_at);

CREATE TABLE working_memory (
  tenant_id text NOT NULL REFERENCES tenants,
  conversation_id uuid NOT NULL REFERENCES conversations,
  field text NOT NULL,
  value jsonb NOT NULL,
  expires_at timestamptz NOT NULL,
  PRIMARY KEY (conversation_id, field)
);

CREATE TABLE entities (
  id uuid PRIMARY KEY,
  tenant_id text NOT NULL REFERENCES tenants,
  kind text NOT NULL,
  name text NOT NULL,
  attributes jsonb NOT NULL DEFAULT '{}',
  created_by_turn uuid,
  created_by_call text,
  created_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE entity_names (
  tenant_id text NOT NULL REFERENCES tenants,
  name_key text NOT NULL,
  entity_id uuid NOT NULL REFERENCES entities,
  PRIMARY KEY (tenant_id, name_key, entity_id)
);

DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['tenants','users','api_tokens','agent_versions','agents','conversations','turns','messages',
    'model_calls','tool_calls','approvals','audit','events','outbox','idempotency','working_memory','entities',
    'entity_names']
  LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
    EXECUTE format('CREATE POLICY own_tenant ON %I USING (tenant_id = current_setting(''perdure.tenant'', true)) '
      'WITH CHECK (tenant_id = current_setting(''perdure.tenant'', true))', t);
  END LOOP;
END $$;
CREATE POLICY shared_content ON agent_versions FOR SELECT
  USING (tenant_id = '*' AND current_setting('perdure.tenant', true) <> '');
CREATE POLICY shared_content ON agents FOR SELECT
  USING (tenant_id = '*' AND current_setting('perdure.tenant', true) <> '');
CREATE POLICY relay_delivers ON outbox TO perdure_relay USING (true);
CREATE POLICY relay_lists ON tenants FOR SELECT TO perdure_relay USING (true);
CREATE POLICY owner_looks_up ON api_tokens FOR SELECT TO perdure_owner USING (true);
CREATE POLICY owner_looks_up ON users FOR SELECT TO perdure_owner USING (true);
CREATE POLICY owner_lists ON tenants TO perdure_owner USING (true) WITH CHECK (true);

-- The only look-up before the tenant is known: the owner of a token.
CREATE FUNCTION principal_of(hash text)
  RETURNS TABLE (tenant_id text, user_id uuid, name text, display_name text, roles text[])
  LANGUAGE sql STABLE SECURITY DEFINER SET search_path = perdure AS $$
    SELECT u.tenant_id, u.id, u.name, u.display_name, u.roles
    FROM api_tokens t JOIN users u ON u.id = t.user_id AND u.tenant_id = t.tenant_id
    WHERE t.token_sha256 = hash AND t.revoked_at IS NULL AND u.disabled_at IS NULL
  $$;
REVOKE ALL ON FUNCTION principal_of(text) FROM PUBLIC;

GRANT USAGE ON SCHEMA perdure TO perdure_app, perdure_relay;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA perdure TO perdure_app, perdure_relay;
REVOKE INSERT, UPDATE, DELETE ON agent_versions, agents, tenants FROM perdure_app, perdure_relay;
REVOKE ALL ON api_tokens FROM perdure_relay;
REVOKE UPDATE, DELETE, TRUNCATE ON audit FROM perdure_app, perdure_relay;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA perdure TO perdure_app, perdure_relay;
GRANT EXECUTE ON FUNCTION principal_of(text) TO perdure_app;

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
