-- The audit chain, with bodies that can be erased: a row is signed and keeps the salted digest of its body.
SET LOCAL search_path = perdure;

-- The owner migrates the rows of all tenants; at the end, row-level security applies to it again.
DROP TRIGGER audit_append_only ON audit;
ALTER TABLE audit NO FORCE ROW LEVEL SECURITY;

-- Subjects are ids, because a row outlives its body, and a name is personal data.
UPDATE audit a SET subject = u.id::text, data = a.data || jsonb_build_object('name', u.name)
  FROM users u WHERE a.kind LIKE 'user.%' AND u.tenant_id = a.tenant_id AND u.name = a.subject;

CREATE TABLE audit_bodies (
  audit_id bigint PRIMARY KEY REFERENCES audit,
  tenant_id text NOT NULL REFERENCES tenants,
  salt text,  -- random: without it, an erased body cannot be guessed from its digest
  data json,  -- json, because the digest is over the exact text; it must also be valid jsonb to be readable
  erased_by bigint REFERENCES audit,  -- the row that records the erasure
  CONSTRAINT audit_body_readable CHECK (data IS NULL OR data::jsonb IS NOT NULL),
  CONSTRAINT audit_body_whole_or_erased CHECK ((data IS NULL) = (erased_by IS NOT NULL) AND (data IS NULL) = (salt IS NULL))
);
INSERT INTO audit_bodies (audit_id, tenant_id, salt, data)
  SELECT id, tenant_id, replace(gen_random_uuid()::text, '-', ''), data::text::json FROM audit;
ALTER TABLE audit ADD COLUMN body_digest text, ADD COLUMN signature text NOT NULL DEFAULT '';
UPDATE audit a SET body_digest = encode(sha256(convert_to(b.salt || b.data::text, 'UTF8')), 'hex')
  FROM audit_bodies b WHERE b.audit_id = a.id;
ALTER TABLE audit DROP COLUMN data, ALTER COLUMN body_digest SET NOT NULL, ALTER COLUMN signature DROP DEFAULT;
-- The tenant is not the first column: such an index was used for every look-up of a few rows by id, and read in full
-- (measured).
DROP INDEX audit_by_subject;
CREATE INDEX audit_by_subject ON audit (subject, id);
CREATE INDEX audit_by_turn ON audit (turn_id) WHERE turn_id IS NOT NULL;
CREATE INDEX audit_by_actor ON audit (actor) WHERE actor IS NOT NULL;

CREATE TABLE audit_chain (
  tenant_id text NOT NULL REFERENCES tenants,
  seq bigint NOT NULL,
  audit_id bigint NOT NULL UNIQUE,
  prev text NOT NULL,
  hash text NOT NULL,
  PRIMARY KEY (tenant_id, seq)
);
-- One row per tenant, updated by every commit that audits something: with free space on the page, no update touches the
-- index.
CREATE TABLE audit_heads (
  tenant_id text PRIMARY KEY REFERENCES tenants,
  seq bigint NOT NULL,
  prev text NOT NULL,
  hash text NOT NULL
) WITH (fillfactor = 20);

-- The same format as in perdure/core/audit.py: each field follows its length in bytes, and a missing field is a dash.
CREATE FUNCTION audit_hash(prev text, seq bigint, a audit) RETURNS text LANGUAGE sql IMMUTABLE
  SET search_path = perdure, pg_temp AS $$
    SELECT encode(sha256(convert_to(string_agg(
      CASE WHEN f.field IS NULL THEN '-,' ELSE octet_length(f.field) || ':' || f.field || ',' END, '' ORDER BY f.n),
      'UTF8')), 'hex')
    FROM unnest(ARRAY[prev, seq::text, (extract(epoch FROM a.at) * 1000000)::bigint::text, a.kind, a.subject,
      a.actor::text, a.turn_id::text, a.body_digest, a.signature]) WITH ORDINALITY AS f(field, n)
  $$;

-- Runs at COMMIT, so that the lock of the head is a transaction's last, and no other lock is awaited under it. Rows are
-- numbered in the order of their commits, and a row is in the chain or does not exist.
CREATE FUNCTION audit_link() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = perdure, pg_temp AS $$
DECLARE head audit_heads;
BEGIN
  LOOP
    UPDATE audit_heads h SET seq = h.seq + 1, prev = h.hash, hash = audit_hash(h.hash, h.seq + 1, NEW)
      WHERE h.tenant_id = NEW.tenant_id RETURNING * INTO head;
    EXIT WHEN FOUND;
    INSERT INTO audit_heads (tenant_id, seq, prev, hash) VALUES (NEW.tenant_id, 0, '', repeat('0', 64))
      ON CONFLICT DO NOTHING;
  END LOOP;
  INSERT INTO audit_chain (tenant_id, seq, audit_id, prev, hash)
    VALUES (head.tenant_id, head.seq, NEW.id, head.prev, head.hash);
  RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION audit_link() FROM PUBLIC;

-- Existing rows become the beginning of the chain. It is unsigned; perdure/apps/bootstrap.py seals it.
DO $$
DECLARE
  a audit;
  before audit_chain;
BEGIN
  FOR a IN SELECT * FROM audit ORDER BY tenant_id, id LOOP
    IF before.tenant_id IS DISTINCT FROM a.tenant_id THEN
      before := ROW(a.tenant_id, 0, 0, '', repeat('0', 64));
    END IF;
    before := ROW(a.tenant_id, before.seq + 1, a.id, before.hash, audit_hash(before.hash, before.seq + 1, a));
    INSERT INTO audit_chain SELECT before.*;
  END LOOP;
  INSERT INTO audit_heads SELECT DISTINCT ON (tenant_id) tenant_id, seq, prev, hash FROM audit_chain
    ORDER BY tenant_id, seq DESC;
END $$;

CREATE CONSTRAINT TRIGGER audit_linked AFTER INSERT ON audit DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION audit_link();
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
  FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only();
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_chain
  FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only();
CREATE TRIGGER audit_append_only BEFORE DELETE OR TRUNCATE ON audit_heads
  FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only();
CREATE TRIGGER audit_append_only BEFORE DELETE OR TRUNCATE ON audit_bodies
  FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only();

CREATE FUNCTION audit_body_is_erased_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.data IS NULL AND OLD.data IS NOT NULL AND (NEW.audit_id, NEW.tenant_id) = (OLD.audit_id, OLD.tenant_id) THEN
    RETURN NEW;
  END IF;
  RAISE EXCEPTION 'an audit body can be erased and not changed: audit rows are append-only';
END $$;
CREATE TRIGGER audit_erased_only BEFORE UPDATE ON audit_bodies
  FOR EACH ROW EXECUTE FUNCTION audit_body_is_erased_only();

ALTER TABLE audit FORCE ROW LEVEL SECURITY;
DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['audit_bodies', 'audit_chain', 'audit_heads']
  LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
    EXECUTE format('CREATE POLICY own_tenant ON %I USING (tenant_id = current_setting(''perdure.tenant'', true)) '
      'WITH CHECK (tenant_id = current_setting(''perdure.tenant'', true))', t);
  END LOOP;
END $$;
-- The hashes of all tenants, which the relay exports.
CREATE POLICY relay_exports ON audit_heads FOR SELECT TO perdure_relay USING (true);
GRANT SELECT, INSERT ON audit_bodies TO perdure_app, perdure_relay;
GRANT UPDATE (salt, data, erased_by) ON audit_bodies TO perdure_app;
GRANT SELECT ON audit_chain, audit_heads TO perdure_app, perdure_relay;

-- An audit row with its body and its place in the chain; it has no place before its transaction commits.
CREATE VIEW audit_trail WITH (security_invoker = true) AS
  SELECT a.id, a.tenant_id, a.at, a.kind, a.subject, a.actor, a.turn_id, b.data::jsonb AS data, b.erased_by,
    c.seq, c.prev, c.hash, a.body_digest, b.salt, a.signature
  FROM audit a LEFT JOIN audit_bodies b ON b.audit_id = a.id LEFT JOIN audit_chain c ON c.audit_id = a.id;
GRANT SELECT ON audit_trail TO perdure_app, perdure_relay;

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
