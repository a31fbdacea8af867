-- Lists by age over whatever has long been done, and since when somebody has kept a request.
SET LOCAL search_path = perdure;

-- One person's claims in a row are one lease, which has an end.
ALTER TABLE approvals ADD COLUMN claimed_since timestamptz;

-- Effects are listed by age, all of them or those of one state. What only reads is never listed.
CREATE INDEX tool_calls_by_age ON tool_calls (tenant_id, created_at DESC, key DESC) WHERE effect <> 'read';
CREATE INDEX tool_calls_by_state ON tool_calls (tenant_id, state, created_at DESC, key DESC) WHERE effect <> 'read';

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
