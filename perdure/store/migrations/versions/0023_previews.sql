-- Previews beside approvals.
SET LOCAL search_path = perdure;

-- NULL: the tool has none. {}: nobody has asked for it. Else what a look at the target found, and when.
ALTER TABLE approvals ADD COLUMN preview jsonb;

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
