-- Lists by age, including ended items, and the start of a reviewer's claim on a request.
SET LOCAL search_path = perdure;

-- Successive claims of one reviewer count as one, which has an end.
ALTER TABLE approvals ADD COLUMN claimed_since timestamptz;

-- Effects are listed by age, either all or those of one state. Calls that only read are never listed.
CREATE INDEX tool_calls_by_age ON tool_calls (tenant_id, created_at DESC, key DESC) WHERE effect <> 'read';
CREATE INDEX tool_calls_by_state ON tool_calls (tenant_id, state, created_at DESC, key DESC) WHERE effect <> 'read';

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
