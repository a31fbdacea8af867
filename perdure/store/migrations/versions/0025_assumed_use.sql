-- The part of a day's usage that is only assumed, for calls that never reported theirs.
SET LOCAL search_path = perdure;

-- Included in used_*; subtracted if such a call returns and reports its usage.
ALTER TABLE day_usage
  ADD COLUMN assumed_tokens bigint NOT NULL DEFAULT 0 CHECK (assumed_tokens >= 0),
  ADD COLUMN assumed_cost_microusd bigint NOT NULL DEFAULT 0 CHECK (assumed_cost_microusd >= 0);

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
