-- The agent's stage that the model call was made for; empty if the topology has no stages.
ALTER TABLE perdure.model_calls ADD COLUMN stage text NOT NULL DEFAULT '';
