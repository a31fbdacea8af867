-- What a reviewer sees beside a call: the tool's sentence, and the call of that tool before it.
SET LOCAL search_path = perdure;

-- The template of the tool's sentence, as its card had it.
ALTER TABLE approvals ADD COLUMN describe text NOT NULL DEFAULT '';

-- The newest that was approved of a tool, among all that were ever asked for.
CREATE INDEX approvals_decided ON approvals (tenant_id, tool, decided_at DESC) WHERE decided_at IS NOT NULL;

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
