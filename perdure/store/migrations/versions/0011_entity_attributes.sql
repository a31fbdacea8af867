-- Entities are found by any attribute through an index. Under row-level security an index on the JSON itself is not
-- used: its operators are not leakproof, so Postgres reads all of a tenant's rows before it applies them.
SET LOCAL search_path = perdure;

-- One row for each attribute of each entity; `key` is the SHA-256 of `name=value`, the form in which a skill refers to
-- it.
CREATE TABLE entity_attributes (
  tenant_id text NOT NULL REFERENCES tenants,
  key bytea NOT NULL,
  created_at timestamptz NOT NULL,  -- the entity's: if several have the same value, the newest counts
  entity_id uuid NOT NULL REFERENCES entities,
  PRIMARY KEY (tenant_id, key, created_at, entity_id)
);

-- `id` and `name` have their own indexes. An attribute's name with = in it cannot be used in a reference.
CREATE FUNCTION attribute_keys(attributes jsonb) RETURNS SETOF bytea LANGUAGE sql IMMUTABLE SET search_path = pg_catalog
AS $$
  SELECT sha256(convert_to(key || '=' || value, 'UTF8')) FROM jsonb_each_text(attributes)
  WHERE value IS NOT NULL AND strpos(key, '=') = 0 AND key NOT IN ('id', 'name')
$$;

-- A trigger, because workers of the previous version also write entities during a rollout.
CREATE FUNCTION index_attributes() RETURNS trigger LANGUAGE plpgsql SET search_path = perdure, pg_catalog AS $$
BEGIN
  IF TG_OP = 'UPDATE' THEN
    DELETE FROM entity_attributes USING attribute_keys(OLD.attributes) AS each(key)
    WHERE tenant_id = OLD.tenant_id AND entity_attributes.key = each.key AND created_at = OLD.created_at
      AND entity_id = OLD.id;
  END IF;
  INSERT INTO entity_attributes (tenant_id, key, created_at, entity_id)
  SELECT NEW.tenant_id, key, NEW.created_at, NEW.id FROM attribute_keys(NEW.attributes) AS each(key);
  RETURN NULL;
END $$;

-- Row-level security applies to the owner too, and this statement copies rows of all tenants.
ALTER TABLE entities NO FORCE ROW LEVEL SECURITY;
INSERT INTO entity_attributes (tenant_id, key, created_at, entity_id)
SELECT tenant_id, key, created_at, id FROM entities, attribute_keys(attributes) AS each(key);
ALTER TABLE entities FORCE ROW LEVEL SECURITY;

CREATE TRIGGER index_attributes AFTER INSERT OR UPDATE OF attributes, created_at ON entities
  FOR EACH ROW EXECUTE FUNCTION index_attributes();

ALTER TABLE entity_attributes ENABLE ROW LEVEL SECURITY;
ALTER TABLE entity_attributes FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON entity_attributes
  USING (tenant_id = (SELECT current_setting('perdure.tenant', true)))
  WITH CHECK (tenant_id = (SELECT current_setting('perdure.tenant', true)));
GRANT SELECT, INSERT, UPDATE, DELETE ON entity_attributes TO perdure_app, perdure_relay;

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
