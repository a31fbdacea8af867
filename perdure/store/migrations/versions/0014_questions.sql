-- A turn's requests to its own user: a question, or work on the user's machine.
CREATE TABLE perdure.questions (
  id uuid PRIMARY KEY,
  tenant_id text NOT NULL REFERENCES perdure.tenants,
  conversation_id uuid NOT NULL REFERENCES perdure.conversations,
  turn_id uuid NOT NULL REFERENCES perdure.turns,
  call_id text NOT NULL,
  kind text NOT NULL CHECK (kind IN ('clarification', 'client_run')),
  asked jsonb NOT NULL,
  answer_schema jsonb NOT NULL,
  status text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'answered', 'expired', 'cancelled')),
  answer jsonb,
  answered_by uuid REFERENCES perdure.users,
  asked_at timestamptz NOT NULL DEFAULT now(),
  expires_at timestamptz NOT NULL,
  closed_at timestamptz,
  CHECK ((status = 'answered') = (answer IS NOT NULL)),
  UNIQUE (tenant_id, turn_id, call_id)
);
-- The structured output of a turn, in addition to its answer.
ALTER TABLE perdure.turns ADD COLUMN output jsonb;
CREATE INDEX questions_by_turn ON perdure.questions (turn_id);
ALTER TABLE perdure.questions ENABLE ROW LEVEL SECURITY;
ALTER TABLE perdure.questions FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON perdure.questions
  USING (tenant_id = current_setting('perdure.tenant', true))
  WITH CHECK (tenant_id = current_setting('perdure.tenant', true));
GRANT SELECT, INSERT, UPDATE, DELETE ON perdure.questions TO perdure_app, perdure_relay;

-- Files that users uploaded or turns made; each is small enough for one row, and belongs to a tenant like all data.
CREATE TABLE perdure.files (
  id uuid PRIMARY KEY,
  tenant_id text NOT NULL REFERENCES perdure.tenants,
  conversation_id uuid NOT NULL REFERENCES perdure.conversations,
  user_id uuid NOT NULL REFERENCES perdure.users,
  turn_id uuid REFERENCES perdure.turns,  -- NULL if a user uploaded the file
  call_id text,
  name text NOT NULL CHECK (name <> '' AND length(name) <= 120),
  media_type text NOT NULL,
  size_bytes bigint NOT NULL,
  sha256 text NOT NULL,
  content bytea NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now()
);
ALTER TABLE perdure.files ALTER COLUMN content SET STORAGE EXTERNAL;
CREATE INDEX files_by_conversation ON perdure.files (conversation_id, created_at DESC, id DESC);
CREATE INDEX files_by_user ON perdure.files (user_id);
ALTER TABLE perdure.files ENABLE ROW LEVEL SECURITY;
ALTER TABLE perdure.files FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON perdure.files
  USING (tenant_id = current_setting('perdure.tenant', true))
  WITH CHECK (tenant_id = current_setting('perdure.tenant', true));
GRANT SELECT, INSERT, UPDATE, DELETE ON perdure.files TO perdure_app, perdure_relay;
