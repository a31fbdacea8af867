-- A gateway user acts on behalf of subjects. Each subject is a separate user without credentials. An erasure clears
-- `subject`, so that the same text later names a new user.
SET LOCAL search_path = perdure;

ALTER TABLE users
  ADD COLUMN gateway_id uuid REFERENCES users,
  ADD COLUMN subject text,
  ADD CONSTRAINT subject_has_gateway CHECK (subject IS NULL OR gateway_id IS NOT NULL),
  ADD CONSTRAINT subject_only_requests CHECK (gateway_id IS NULL OR roles <@ ARRAY['requester']);
CREATE UNIQUE INDEX users_of_gateway ON users (gateway_id, subject) WHERE subject IS NOT NULL;
CREATE INDEX users_with_credentials ON users (tenant_id, name) WHERE gateway_id IS NULL;

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
