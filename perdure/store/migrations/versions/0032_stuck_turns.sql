-- The failing workflow task of an open turn, as the relay found it: failures, since, message. NULL if there is none.
ALTER TABLE perdure.turns ADD COLUMN stuck jsonb;
