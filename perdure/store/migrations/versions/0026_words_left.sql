-- What a model had streamed when its provider failed, for a turn that is stopped before the next attempt.
SET LOCAL search_path = perdure;

ALTER TABLE model_calls ADD COLUMN said text;

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
