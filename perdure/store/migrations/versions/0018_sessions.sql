-- Sign-in of users: passwords, sessions with their refresh tokens, invitations, identities at other providers.
SET LOCAL search_path = perdure;

-- Separate from `users`, because many statements read all columns of that table.
CREATE TABLE passwords (
  user_id uuid PRIMARY KEY REFERENCES users,
  tenant_id text NOT NULL REFERENCES tenants,
  hash text NOT NULL,
  set_at timestamptz NOT NULL DEFAULT now()
);

-- A session is also the family of its refresh tokens. `local`: started with a token of the stack for its own machine.
CREATE TABLE sessions (
  id uuid PRIMARY KEY,
  tenant_id text NOT NULL REFERENCES tenants,
  user_id uuid NOT NULL REFERENCES users,
  local boolean NOT NULL DEFAULT false,
  began_at timestamptz NOT NULL DEFAULT now(),
  expires_at timestamptz NOT NULL,
  ended_at timestamptz
);
CREATE INDEX sessions_by_user ON sessions (user_id) WHERE ended_at IS NULL;
CREATE INDEX sessions_by_end ON sessions (tenant_id, expires_at);

-- A used token names its successor by hash, and how the successor is derived from the token that only its owner has.
CREATE TABLE refresh_tokens (
  token_sha256 text PRIMARY KEY,
  tenant_id text NOT NULL REFERENCES tenants,
  session_id uuid NOT NULL REFERENCES sessions ON DELETE CASCADE,
  expires_at timestamptz NOT NULL,
  used_at timestamptz,
  nonce text,
  successor_sha256 text
);
CREATE INDEX refresh_tokens_by_session ON refresh_tokens (session_id);

CREATE TABLE invitations (
  token_sha256 text PRIMARY KEY,
  tenant_id text NOT NULL REFERENCES tenants,
  user_id uuid NOT NULL UNIQUE REFERENCES users,
  expires_at timestamptz NOT NULL
);

CREATE TABLE identities (
  tenant_id text NOT NULL REFERENCES tenants,
  issuer text NOT NULL,
  subject text NOT NULL,
  user_id uuid NOT NULL REFERENCES users,
  linked_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, issuer, subject)
);
CREATE INDEX identities_by_user ON identities (user_id);

DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['passwords','sessions','refresh_tokens','invitations','identities']
  LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
    EXECUTE format('CREATE POLICY own_tenant ON %I USING (tenant_id = current_setting(''perdure.tenant'', true)) '
      'WITH CHECK (tenant_id = current_setting(''perdure.tenant'', true))', t);
  END LOOP;
END $$;
CREATE POLICY owner_looks_up ON sessions FOR SELECT TO perdure_owner USING (true);

-- Returns a session's user with the current roles, in one round trip.
CREATE FUNCTION principal_of_session(session uuid)
  RETURNS TABLE (tenant_id text, user_id uuid, name text, roles text[], local boolean)
  LANGUAGE sql STABLE SECURITY DEFINER SET search_path = perdure, pg_temp AS $$
    SELECT u.tenant_id, u.id, u.name, u.roles, s.local
    FROM sessions s JOIN users u ON u.id = s.user_id AND u.tenant_id = s.tenant_id
    WHERE s.id = session AND s.ended_at IS NULL AND s.expires_at > now() AND u.disabled_at IS NULL
  $$;
REVOKE ALL ON FUNCTION principal_of_session(uuid) FROM PUBLIC;

GRANT SELECT, INSERT, UPDATE, DELETE ON passwords, sessions, refresh_tokens, invitations, identities TO perdure_app;
GRANT EXECUTE ON FUNCTION principal_of_session(uuid) TO perdure_app;

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
