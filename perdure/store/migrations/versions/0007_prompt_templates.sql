-- Prompt templates and their stages. A row is one version of a template's text; its stage determines which turns use
-- it.
CREATE TABLE perdure.prompt_versions (
  id uuid PRIMARY KEY,
  tenant_id text NOT NULL REFERENCES perdure.tenants,
  template text NOT NULL CHECK (template ~ '^[a-z][a-z0-9_-]{0,63}$'),
  stage text NOT NULL DEFAULT 'draft' CHECK (stage IN ('draft','pre_production','active','archived')),
  text text NOT NULL,
  digest text NOT NULL,
  author uuid NOT NULL REFERENCES perdure.users,
  created_at timestamptz NOT NULL DEFAULT now(),
  changed_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX prompt_one_draft ON perdure.prompt_versions (tenant_id, template, author) WHERE stage = 'draft';
CREATE UNIQUE INDEX prompt_one_pre_production ON perdure.prompt_versions (tenant_id, template)
  WHERE stage = 'pre_production';
CREATE UNIQUE INDEX prompt_one_active ON perdure.prompt_versions (tenant_id, template) WHERE stage = 'active';
CREATE INDEX prompt_versions_by_age ON perdure.prompt_versions (tenant_id, changed_at DESC, id DESC);

ALTER TABLE perdure.prompt_versions ENABLE ROW LEVEL SECURITY;
ALTER TABLE perdure.prompt_versions FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON perdure.prompt_versions USING (tenant_id = current_setting('perdure.tenant', true))
  WITH CHECK (tenant_id = current_setting('perdure.tenant', true));

GRANT SELECT, INSERT, UPDATE, DELETE ON perdure.prompt_versions TO perdure_app, perdure_relay;

-- The persona that a turn took from a template at its start, rendered: {template, version_id, stage, text} or a
-- problem.
ALTER TABLE perdure.turns ADD COLUMN persona jsonb;
