-- Documents of memory: stores, paths, immutable versions, their use by turns, and promotions.
SET LOCAL search_path = perdure;

CREATE TABLE memory_stores (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  tenant_id text NOT NULL REFERENCES tenants,
  slug text NOT NULL,
  scope text NOT NULL CHECK (scope IN ('conversation','user','workspace')),
  archived_at timestamptz,
  created_at timestamptz NOT NULL DEFAULT now(),
  UNIQUE (tenant_id, slug)
);

-- The current state of a document. `place_id` is the id of its conversation or user, or of the store.
CREATE TABLE memory_documents (
  id uuid PRIMARY KEY,
  tenant_id text NOT NULL REFERENCES tenants,
  store_id uuid NOT NULL REFERENCES memory_stores,
  scope text NOT NULL,
  owner_id uuid REFERENCES users,
  conversation_id uuid REFERENCES conversations,
  place_id uuid NOT NULL GENERATED ALWAYS AS (coalesce(conversation_id, owner_id, store_id)) STORED,
  path text NOT NULL,
  type text NOT NULL,
  title text NOT NULL,
  entities text[] NOT NULL DEFAULT '{}',
  trust text NOT NULL CHECK (trust IN ('admin_approved','system_seeded','user_authored','agent_draft')),
  version_id uuid NOT NULL,
  sha256 text NOT NULL,
  versions integer NOT NULL DEFAULT 1,
  words tsvector STORAGE MAIN NOT NULL,  -- stored in its row, so that a search needs no second look-up
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  deleted_at timestamptz,
  deleted_by uuid,
  CHECK ((scope = 'workspace') = (owner_id IS NULL)),
  CHECK ((scope = 'conversation') = (conversation_id IS NOT NULL))
);
CREATE UNIQUE INDEX memory_documents_by_path ON memory_documents (store_id, place_id, path) WHERE deleted_at IS NULL;
CREATE INDEX memory_documents_of_workspace ON memory_documents (tenant_id) WHERE scope = 'workspace' AND deleted_at IS NULL;
CREATE INDEX memory_documents_by_owner ON memory_documents (owner_id) WHERE owner_id IS NOT NULL;
CREATE INDEX memory_documents_by_conversation ON memory_documents (conversation_id) WHERE conversation_id IS NOT NULL;

CREATE TABLE memory_versions (
  id uuid PRIMARY KEY,
  tenant_id text NOT NULL REFERENCES tenants,
  document_id uuid NOT NULL REFERENCES memory_documents ON DELETE CASCADE,
  owner_id uuid,  -- of the document
  number integer NOT NULL,
  sha256 text NOT NULL,
  content text,  -- NULL if it was redacted
  trust text NOT NULL,
  author uuid NOT NULL,
  by_agent boolean NOT NULL,
  turn_id uuid,
  call_id text,
  evidence_summary text NOT NULL DEFAULT '',
  source_refs jsonb NOT NULL DEFAULT '[]',
  created_at timestamptz NOT NULL DEFAULT now(),
  redacted_at timestamptz,
  redacted_by uuid,
  redaction_reason text NOT NULL DEFAULT '',
  UNIQUE (document_id, number),
  CHECK ((content IS NULL) = (redacted_at IS NOT NULL))
);

-- A version can be blanked, but never changed.
CREATE FUNCTION memory_version_is_blanked_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (NEW.id, NEW.tenant_id, NEW.document_id, NEW.owner_id, NEW.number, NEW.sha256, NEW.trust, NEW.author, NEW.by_agent,
      NEW.turn_id, NEW.call_id, NEW.created_at)
    IS NOT DISTINCT FROM (OLD.id, OLD.tenant_id, OLD.document_id, OLD.owner_id, OLD.number, OLD.sha256, OLD.trust,
      OLD.author, OLD.by_agent, OLD.turn_id, OLD.call_id, OLD.created_at)
    AND (NEW.content IS NULL OR NEW.content = OLD.content)
    AND NEW.evidence_summary IN (OLD.evidence_summary, '') AND NEW.source_refs IN (OLD.source_refs, '[]')
    AND (OLD.redacted_at IS NULL
      OR (NEW.redacted_at, NEW.redacted_by) IS NOT DISTINCT FROM (OLD.redacted_at, OLD.redacted_by))
  THEN
    RETURN NEW;
  END IF;
  RAISE EXCEPTION 'a version of a document is immutable; it can only be redacted';
END $$;
CREATE TRIGGER memory_version_immutable BEFORE UPDATE ON memory_versions
  FOR EACH ROW EXECUTE FUNCTION memory_version_is_blanked_only();

-- The use of versions by turns: injected, read, written, proposed.
CREATE TABLE conversation_memory_usage (
  tenant_id text NOT NULL REFERENCES tenants,
  conversation_id uuid NOT NULL REFERENCES conversations,
  turn_id uuid NOT NULL REFERENCES turns,
  call_id text NOT NULL DEFAULT '',
  kind text NOT NULL CHECK (kind IN ('injected','read','written','proposed')),
  version_id uuid NOT NULL REFERENCES memory_versions ON DELETE CASCADE,
  at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (turn_id, kind, call_id, version_id)
);
CREATE INDEX conversation_memory_usage_by_version ON conversation_memory_usage (version_id);

-- The text of a promotion to the workspace's memory, for the decision of another user.
CREATE TABLE memory_promotions (
  id uuid PRIMARY KEY,
  tenant_id text NOT NULL REFERENCES tenants,
  source_document uuid NOT NULL,
  source_version uuid NOT NULL,
  store_id uuid NOT NULL REFERENCES memory_stores,
  path text NOT NULL,
  type text NOT NULL,
  title text NOT NULL,
  entities text[] NOT NULL DEFAULT '{}',
  content text NOT NULL,
  sha256 text NOT NULL,
  base_sha256 text,  -- of the shared document at the time of the proposal; NULL if it did not exist
  risk text NOT NULL CHECK (risk IN ('low','medium','high')),
  evidence_summary text NOT NULL DEFAULT '',
  source_refs jsonb NOT NULL DEFAULT '[]',
  proposed_by uuid NOT NULL REFERENCES users,
  by_agent boolean NOT NULL,
  turn_id uuid,
  call_id text,
  status text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending','approved','rejected','withdrawn')),
  decided_by uuid,
  decided_at timestamptz,
  comment text NOT NULL DEFAULT '',
  made_version uuid,
  created_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX memory_promotions_pending ON memory_promotions (store_id, path, sha256) WHERE status = 'pending';
CREATE INDEX memory_promotions_by_time ON memory_promotions (tenant_id, created_at DESC, id DESC);
CREATE INDEX memory_promotions_by_source ON memory_promotions (source_version);
CREATE INDEX memory_promotions_by_proposer ON memory_promotions (proposed_by);

DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['memory_stores','memory_documents','memory_versions','conversation_memory_usage',
    'memory_promotions']
  LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
    EXECUTE format('CREATE POLICY own_tenant ON %I '
      'USING (tenant_id = (SELECT current_setting(''perdure.tenant'', true))) '
      'WITH CHECK (tenant_id = (SELECT current_setting(''perdure.tenant'', true)))', t);
  END LOOP;
  -- A user's documents are only for that user, even if a statement lacks the condition: a transaction without a reader
  -- sees only the workspace's documents. The reader `*` is an administrator who deletes or redacts, or an erasure.
  FOREACH t IN ARRAY ARRAY['memory_documents','memory_versions'] LOOP
    EXECUTE format('CREATE POLICY own_reader ON %I AS RESTRICTIVE USING (owner_id IS NULL '
      'OR owner_id = (SELECT nullif(nullif(current_setting(''perdure.reader'', true), ''''), ''*'')::uuid) '
      'OR (SELECT current_setting(''perdure.reader'', true)) = ''*'')', t);
  END LOOP;
END $$;
GRANT SELECT, INSERT, UPDATE, DELETE ON memory_stores, memory_documents, memory_versions, conversation_memory_usage,
  memory_promotions TO perdure_app, perdure_relay;

-- Erases a part of a user's data: documents with their versions, promotions, and the user's texts in other rows.
CREATE FUNCTION forget_documents_of(person uuid, most integer) RETURNS SETOF uuid LANGUAGE plpgsql
  SET search_path = perdure, pg_temp AS $$
DECLARE before text := coalesce(current_setting('perdure.reader', true), '');
BEGIN
  PERFORM set_config('perdure.reader', '*', true);
  RETURN QUERY DELETE FROM memory_documents WHERE id = ANY(ARRAY(
    SELECT id FROM memory_documents WHERE owner_id = person LIMIT most)) RETURNING id;
  RETURN QUERY DELETE FROM memory_promotions WHERE id = ANY(ARRAY(
    SELECT id FROM memory_promotions WHERE proposed_by = person LIMIT most)) RETURNING id;
  RETURN QUERY UPDATE memory_promotions SET comment = '' WHERE decided_by = person AND comment <> '' RETURNING id;
  RETURN QUERY UPDATE memory_versions SET evidence_summary = '', source_refs = '[]' WHERE id = ANY(ARRAY(
    SELECT id FROM memory_versions WHERE author = person AND (evidence_summary <> '' OR source_refs <> '[]')
    LIMIT most)) RETURNING id;
  RETURN QUERY UPDATE memory_versions SET redaction_reason = '' WHERE redacted_by = person AND redaction_reason <> ''
    RETURNING id;
  PERFORM set_config('perdure.reader', before, true);
END $$;

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
