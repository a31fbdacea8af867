-- A model call whose provider said that the conversation is too long: its next attempt sends half of it.
ALTER TABLE perdure.model_calls ADD COLUMN compacted boolean NOT NULL DEFAULT false;
