-- The stage of its agent that a model call was made for; empty where the topology has none.
ALTER TABLE perdure.model_calls ADD COLUMN stage text NOT NULL DEFAULT '';
