-- Facts that graphs keep: those of a conversation have a key, those of a user are only ever added.
SET LOCAL search_path = perdure;

CREATE TABLE conversation_facts (
  tenant_id text NOT NULL REFERENCES tenants,
  conversation_id uuid NOT NULL REFERENCES conversations,
  type text NOT NULL,
  content text NOT NULL CHECK (length(content) BETWEEN 1 AND 200),
  confidence real NOT NULL CHECK (confidence BETWEEN 0 AND 1),
  turn_id uuid NOT NULL REFERENCES turns,
  kept_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (conversation_id, type)
);

CREATE TABLE user_facts (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id text NOT NULL REFERENCES tenants,
  user_id uuid NOT NULL REFERENCES users,
  type text NOT NULL,
  content text NOT NULL CHECK (length(content) BETWEEN 1 AND 200),
  confidence real NOT NULL CHECK (confidence BETWEEN 0 AND 1),
  turn_id uuid NOT NULL REFERENCES turns,
  words tsvector NOT NULL GENERATED ALWAYS AS (to_tsvector('pg_catalog.english', content)) STORED,
  embedder text,
  embedding public.vector STORAGE MAIN,
  kept_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  CHECK ((embedder IS NULL) = (embedding IS NULL)),
  UNIQUE (user_id, type, content)  -- a repeated fact is kept once, also if another attempt writes it
);

CREATE FUNCTION user_facts_are_only_added() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'a fact about a person is never changed' USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER only_added BEFORE UPDATE ON user_facts FOR EACH ROW EXECUTE FUNCTION user_facts_are_only_added();

DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['conversation_facts','user_facts']
  LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
    EXECUTE format('CREATE POLICY own_tenant ON %I '
      'USING (tenant_id = (SELECT current_setting(''perdure.tenant'', true))) '
      'WITH CHECK (tenant_id = (SELECT current_setting(''perdure.tenant'', true)))', t);
  END LOOP;
END $$;
GRANT SELECT, INSERT, UPDATE, DELETE ON conversation_facts TO perdure_app, perdure_relay;
GRANT SELECT, INSERT ON user_facts TO perdure_app, perdure_relay;

-- Facts of a user are never deleted one by one, but erased with the user.
CREATE FUNCTION forget_facts_of(person uuid, most integer) RETURNS SETOF bigint LANGUAGE sql SECURITY DEFINER
  SET search_path = perdure, pg_temp AS $$
  DELETE FROM user_facts WHERE id = ANY(ARRAY(SELECT id FROM user_facts WHERE user_id = person LIMIT most))
  RETURNING id
$$;
REVOKE ALL ON FUNCTION forget_facts_of FROM PUBLIC;
GRANT EXECUTE ON FUNCTION forget_facts_of TO perdure_app;

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
