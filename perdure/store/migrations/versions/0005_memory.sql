-- Working memory by its own time to live, episodes (summaries of turns) and the ledger of injected skills.

DO $$ BEGIN
  -- The owner may not create it: pgvector is no trusted extension. The step that makes the roles does, as a superuser.
  IF to_regtype('public.vector') IS NULL THEN
    CREATE EXTENSION vector SCHEMA public;
  END IF;
EXCEPTION WHEN OTHERS THEN
  RAISE EXCEPTION 'pgvector is not in this database (%)', SQLERRM
    USING HINT = 'as a superuser, run in this database: CREATE EXTENSION vector SCHEMA public';
END $$;

SET LOCAL search_path = perdure;

-- Each read and write of a conversation's fields gives every one of them its own time again.
ALTER TABLE working_memory ADD COLUMN ttl_seconds integer NOT NULL DEFAULT 86400 CHECK (ttl_seconds > 0);

-- Whether a summary of the turn is kept when it completes: fixed when its agent is read, at its start.
ALTER TABLE turns ADD COLUMN remembers boolean NOT NULL DEFAULT false;

CREATE TABLE episodes (
  id uuid PRIMARY KEY,
  tenant_id text NOT NULL REFERENCES tenants,
  conversation_id uuid NOT NULL REFERENCES conversations,
  turn_id uuid UNIQUE REFERENCES turns,
  user_id uuid NOT NULL REFERENCES users,
  agent_id text NOT NULL,
  summary text NOT NULL,
  words tsvector NOT NULL GENERATED ALWAYS AS (to_tsvector('pg_catalog.english', summary)) STORED,
  embedder text,
  embedding public.vector STORAGE MAIN,  -- beside its row, where a search reads it without a second look-up
  embed_after timestamptz NOT NULL DEFAULT now(),
  created_at timestamptz NOT NULL DEFAULT now(),
  CHECK ((embedder IS NULL) = (embedding IS NULL))
);
-- Exact search over one user's summaries with one agent; why there is no HNSW index: ADR 11.
CREATE INDEX episodes_by_owner ON episodes (user_id, agent_id);
CREATE INDEX episodes_by_conversation ON episodes (conversation_id, created_at, id);
CREATE INDEX episodes_to_embed ON episodes (embed_after) WHERE embedder IS NULL;

-- What was put before the model, turn by turn; tier 2 is a skill's definition, tier 3 its artifacts.
CREATE TABLE injection_ledger (
  tenant_id text NOT NULL REFERENCES tenants,
  conversation_id uuid NOT NULL REFERENCES conversations,
  skill_id text NOT NULL,
  turn_id uuid NOT NULL REFERENCES turns,
  tier integer NOT NULL CHECK (tier BETWEEN 1 AND 4),
  injected_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (conversation_id, skill_id, tier, turn_id)
);

DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['episodes','injection_ledger']
  LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
    -- As subselects: asked once a statement and not for each of the rows that a search looks at.
    EXECUTE format('CREATE POLICY own_tenant ON %I '
      'USING (tenant_id = (SELECT current_setting(''perdure.tenant'', true))) '
      'WITH CHECK (tenant_id = (SELECT current_setting(''perdure.tenant'', true)))', t);
  END LOOP;
END $$;
GRANT SELECT, INSERT, UPDATE, DELETE ON episodes, injection_ledger TO perdure_app, perdure_relay;

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
