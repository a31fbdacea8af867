-- The assumed usage of an attempt of a model call, until it reports its own.
SET LOCAL search_path = perdure;

-- The usage of the attempt that holds the call, as its claim estimated it; NULL after it is counted.
ALTER TABLE model_calls ADD COLUMN assumed jsonb;

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
