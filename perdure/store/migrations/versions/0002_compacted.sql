-- True if the provider rejected the conversation as too long: the call's next attempt sends half of it.
ALTER TABLE perdure.model_calls ADD COLUMN compacted boolean NOT NULL DEFAULT false;
