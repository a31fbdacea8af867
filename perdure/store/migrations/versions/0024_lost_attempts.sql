-- What an attempt of a model call is taken to have used until it says so itself.
SET LOCAL search_path = perdure;

-- Usage of the attempt that holds the call, by its claim's estimate; null once it is counted.
ALTER TABLE model_calls ADD COLUMN assumed jsonb;

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
