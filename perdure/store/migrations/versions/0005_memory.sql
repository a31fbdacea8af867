-- Working memory with a time to live for each field, episodes (summaries of turns) and the ledger of injected skills.

DO $$ BEGIN
  -- The owner cannot create it, because pgvector is not a trusted extension. The step that creates the roles does so,
  -- as a superuser.
  IF to_regtype('public.vector') IS NULL THEN
    CREATE EXTENSION vector SCHEMA public;
  END IF;
EXCEPTION WHEN OTHERS THEN
  RAISE EXCEPTION 'pgvector is not in this database (%)', SQLERRM
    USING HINT = 'as a superuser, run in this database: CREATE EXTENSION vector SCHEMA public';
END $$;

SET LOCAL search_path = perdure;

-- Each read and write of a conversation's fields restarts the time to live of all of them.
ALTER TABLE working_memory ADD COLUMN ttl_seconds integer NOT NULL DEFAULT 86400 CHECK (ttl_seconds > 0);

-- Whether the turn's summary is kept when it completes. Set at the turn's start, when its agent is read.
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
  embedding public.vector STORAGE MAIN,  -- stored in its row, so that a search needs no second look-up
  embed_after timestamptz NOT NULL DEFAULT now(),
  created_at timestamptz NOT NULL DEFAULT now(),
  CHECK ((embedder IS NULL) = (embedding IS NULL))
);
-- Searches over one user's summaries with one agent are exact; ADR 11 has the reason for no HNSW index.
CREATE INDEX episodes_by_owner ON episodes (user_id, agent_id);
CREATE INDEX episodes_by_conversation ON episodes (conversation_id, created_at, id);
CREATE INDEX episodes_to_embed ON episodes (embed_after) WHERE embedder IS NULL;

-- What each turn added to the model's context; tier 2 is a skill's definition, tier 3 its artifacts.
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
    -- Subselects, because they are evaluated once per statement and not for each row that a search reads.
    EXECUTE format('CREATE POLICY own_tenant ON %I '
      'USING (tenant_id = (SELECT current_setting(''perdure.tenant'', true))) '
      'WITH CHECK (tenant_id = (SELECT current_setting(''perdure.tenant'', true)))', t);
  END LOOP;
END $$;
GRANT SELECT, INSERT, UPDATE, DELETE ON episodes, injection_ledger TO perdure_app, perdure_relay;

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
