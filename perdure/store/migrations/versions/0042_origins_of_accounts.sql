-- What is known of the people behind an account and behind a request. Existing rows: nothing is known, so no relation.
SET LOCAL search_path = perdure;

-- `opened`: how the account was opened. `opened_as`: the users as whom the client that opened it was signed in.
-- `invited_by`: the users whose invitation opened it. `invited_near`: the invitation was made and redeemed at one client
-- address, or in a browser of the inviter; NULL is unknown. `roles_by`: the users who last set the roles.
ALTER TABLE users ADD COLUMN opened text NOT NULL DEFAULT '', ADD COLUMN opened_as uuid[] NOT NULL DEFAULT '{}',
  ADD COLUMN invited_by uuid[] NOT NULL DEFAULT '{}', ADD COLUMN invited_near boolean,
  ADD COLUMN roles_by uuid[] NOT NULL DEFAULT '{}';

-- A keyed digest of the client address at which the invitation was made; empty is unknown.
ALTER TABLE invitations ADD COLUMN made_at text NOT NULL DEFAULT '';

-- The credential with which the turn was requested: the sign-in method, and the users who created the credential.
ALTER TABLE turns ADD COLUMN asked_how text NOT NULL DEFAULT '', ADD COLUMN asked_by uuid[] NOT NULL DEFAULT '{}';

-- True if related users can decide on each other's high-risk calls.
ALTER TABLE tenants ADD COLUMN related_decide boolean NOT NULL DEFAULT false;
GRANT UPDATE (related_decide) ON tenants TO perdure_app;

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
