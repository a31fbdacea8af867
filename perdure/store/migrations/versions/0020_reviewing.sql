-- What a reviewer sees with a call: the tool's sentence, and the previous decided call of the same tool.
SET LOCAL search_path = perdure;

-- The template of the tool's sentence, from its card at the time of the request.
ALTER TABLE approvals ADD COLUMN describe text NOT NULL DEFAULT '';

-- Finds a tool's newest decided request among all of its requests.
CREATE INDEX approvals_decided ON approvals (tenant_id, tool, decided_at DESC) WHERE decided_at IS NOT NULL;

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
