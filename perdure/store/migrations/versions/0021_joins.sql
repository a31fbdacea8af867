-- Messages that join a turn under way, and turns that replace another.
SET LOCAL search_path = perdure;

-- Of a message that is sent into a turn under way: '' while no model call has heard it, then the id of the one that has.
ALTER TABLE messages ADD COLUMN joins text;
CREATE INDEX messages_joined ON messages (turn_id) WHERE joins IS NOT NULL;

ALTER TABLE turns ADD COLUMN replaced_by uuid REFERENCES turns DEFERRABLE INITIALLY DEFERRED;

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
