-- Previews of calls, for their approvals.
SET LOCAL search_path = perdure;

-- NULL: the tool has no preview. {}: no preview was requested. Otherwise, the preview's result and its time.
ALTER TABLE approvals ADD COLUMN preview jsonb;

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
