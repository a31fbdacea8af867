-- Messages that steer an open turn, and turns that replace another.
SET LOCAL search_path = perdure;

-- Set if a message was sent into an open turn: '' until a model call receives it, then the id of that call.
ALTER TABLE messages ADD COLUMN joins text;
CREATE INDEX messages_joined ON messages (turn_id) WHERE joins IS NOT NULL;

ALTER TABLE turns ADD COLUMN replaced_by uuid REFERENCES turns DEFERRABLE INITIALLY DEFERRED;

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
