-- How much of what a day has used is only assumed, of calls that nobody heard of again.
SET LOCAL search_path = perdure;

-- Part of used_*; taken out again where such a call comes back and says what it used.
ALTER TABLE day_usage
  ADD COLUMN assumed_tokens bigint NOT NULL DEFAULT 0 CHECK (assumed_tokens >= 0),
  ADD COLUMN assumed_cost_microusd bigint NOT NULL DEFAULT 0 CHECK (assumed_cost_microusd >= 0);

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
