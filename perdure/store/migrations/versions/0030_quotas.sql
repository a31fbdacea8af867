-- How many bytes each user, conversation and tenant has stored, for their quotas (ADR 31).
SET LOCAL search_path = perdure;

CREATE TABLE byte_usage (
  tenant_id text NOT NULL REFERENCES tenants,
  scope text NOT NULL CHECK (scope IN ('tenant','user','conversation')),
  subject_id uuid NOT NULL,  -- the user or the conversation; the nil UUID for a tenant
  stored_bytes bigint NOT NULL DEFAULT 0,  -- files, documents, and texts of deleted conversations: exact
  files bigint NOT NULL DEFAULT 0,
  text_bytes bigint NOT NULL DEFAULT 0,  -- texts of conversations, as they were at `summed_at`
  summed_at timestamptz,
  PRIMARY KEY (tenant_id, scope, subject_id)
);

-- Titles, metadata and messages: updated by the statement that writes them, which locks the row anyway.
ALTER TABLE conversations ADD COLUMN text_bytes bigint NOT NULL DEFAULT 0;

-- Adds to the counters. The tenant's row comes first, so that counting transactions never wait for each other in a
-- circle. Files and documents are counted after they are written.
CREATE FUNCTION count_bytes(of_tenant text, of_user uuid, of_conversation uuid, bytes bigint, many bigint) RETURNS void
LANGUAGE sql SET search_path = perdure, pg_temp AS $$
  INSERT INTO byte_usage AS u (tenant_id, scope, subject_id, stored_bytes, files)
  SELECT of_tenant, scope, subject_id, bytes, many FROM (VALUES
    (1, 'tenant', '00000000-0000-0000-0000-000000000000'::uuid),
    (2, 'user', of_user),
    (3, 'conversation', of_conversation)) AS counters(place, scope, subject_id)
  WHERE subject_id IS NOT NULL ORDER BY place
  ON CONFLICT (tenant_id, scope, subject_id) DO UPDATE
    SET stored_bytes = greatest(0, u.stored_bytes + excluded.stored_bytes), files = greatest(0, u.files + excluded.files)
$$;

-- Triggers, so that erasures, workers of the previous version and all other deletions are counted too.
CREATE FUNCTION count_files() RETURNS trigger LANGUAGE plpgsql SET search_path = perdure, pg_temp AS $$
DECLARE sign integer := CASE TG_OP WHEN 'DELETE' THEN -1 ELSE 1 END;
BEGIN
  PERFORM count_bytes(tenant_id, user_id, conversation_id, sign * bytes, sign * many) FROM (
    SELECT tenant_id, user_id, conversation_id, sum(size_bytes)::bigint AS bytes, count(*) AS many
    FROM counted GROUP BY 1, 2, 3 ORDER BY 1, 2, 3) each;
  RETURN NULL;
END $$;
CREATE TRIGGER count_new AFTER INSERT ON files REFERENCING NEW TABLE AS counted
  FOR EACH STATEMENT EXECUTE FUNCTION count_files();
CREATE TRIGGER count_gone AFTER DELETE ON files REFERENCING OLD TABLE AS counted
  FOR EACH STATEMENT EXECUTE FUNCTION count_files();

-- Counts a text that a user keeps: the column `content` of a row, for the user whom the row names.
CREATE FUNCTION count_content() RETURNS trigger LANGUAGE plpgsql SET search_path = perdure, pg_temp AS $$
DECLARE
  counted record;
  person uuid;
  more bigint := 0;
BEGIN
  IF TG_OP = 'DELETE' THEN counted := OLD; ELSE counted := NEW; more := coalesce(octet_length(NEW.content), 0); END IF;
  IF TG_OP <> 'INSERT' THEN more := more - coalesce(octet_length(OLD.content), 0); END IF;
  IF TG_TABLE_NAME = 'memory_versions' THEN person := counted.owner_id; ELSE person := counted.proposed_by; END IF;
  IF more <> 0 THEN PERFORM count_bytes(counted.tenant_id, person, NULL, more, 0); END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER count_content AFTER INSERT OR UPDATE OF content OR DELETE ON memory_versions
  FOR EACH ROW EXECUTE FUNCTION count_content();
CREATE TRIGGER count_content AFTER INSERT OR UPDATE OF content OR DELETE ON memory_promotions
  FOR EACH ROW EXECUTE FUNCTION count_content();

-- Counts existing data. Row-level security applies to the owner too, and this block reads the rows of all tenants.
DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['files','memory_versions','memory_promotions','conversations','messages','turns'] LOOP
    EXECUTE format('ALTER TABLE %I NO FORCE ROW LEVEL SECURITY', t);
  END LOOP;
END $$;
UPDATE conversations c SET text_bytes = octet_length(title) + octet_length(metadata::text)
  + coalesce((SELECT sum(octet_length(m.content) + CASE WHEN m.calls = '[]' THEN 0 ELSE octet_length(m.calls::text) END)
    FROM messages m WHERE m.conversation_id = c.id), 0)
  + coalesce((SELECT sum(octet_length(t.metadata::text) + coalesce(octet_length(t.system_prompt), 0))
    FROM turns t WHERE t.conversation_id = c.id), 0);
INSERT INTO byte_usage (tenant_id, scope, subject_id, stored_bytes, files, text_bytes, summed_at)
SELECT tenant_id, scope, subject_id, sum(stored), sum(files), sum(texts), now() FROM (
  SELECT tenant_id, user_id, conversation_id, size_bytes AS stored, 1 AS files, 0 AS texts FROM files UNION ALL
  SELECT tenant_id, owner_id, NULL, coalesce(octet_length(content), 0), 0, 0 FROM memory_versions UNION ALL
  SELECT tenant_id, proposed_by, NULL, octet_length(content), 0, 0 FROM memory_promotions UNION ALL
  SELECT tenant_id, user_id, NULL, CASE WHEN deleted_at IS NULL THEN 0 ELSE text_bytes END, 0,
    CASE WHEN deleted_at IS NULL THEN text_bytes ELSE 0 END FROM conversations) each,
  LATERAL (VALUES ('tenant', '00000000-0000-0000-0000-000000000000'::uuid), ('user', user_id),
    ('conversation', conversation_id)) AS counters(scope, subject_id)
WHERE subject_id IS NOT NULL GROUP BY 1, 2, 3;
DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['files','memory_versions','memory_promotions','conversations','messages','turns',
    'byte_usage']
  LOOP
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
  END LOOP;
END $$;

ALTER TABLE byte_usage ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON byte_usage USING (tenant_id = (SELECT current_setting('perdure.tenant', true)))
  WITH CHECK (tenant_id = (SELECT current_setting('perdure.tenant', true)));
GRANT SELECT, INSERT, UPDATE, DELETE ON byte_usage TO perdure_app, perdure_relay;

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
