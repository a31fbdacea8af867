-- The claims (epochs) with which the call made its worker hang. After two, it is not run again.
ALTER TABLE perdure.tool_calls ADD COLUMN hung_epochs integer[] NOT NULL DEFAULT '{}';
