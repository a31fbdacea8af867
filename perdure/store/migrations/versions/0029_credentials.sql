-- The creators of each credential, so that no user decides on their own request with a token or session of another
-- user.
SET LOCAL search_path = perdure;

-- `created_by`: the users who created the credential, the direct creator first, then the creators of the credential
-- that was used for it. Empty: only its owner, or the operator. The nil UUID stands for an unknown creator. It is the
-- default, so that a row without a creator is never treated as created by its owner.
ALTER TABLE api_tokens ADD COLUMN created_by uuid[] NOT NULL DEFAULT '{00000000-0000-0000-0000-000000000000}';
ALTER TABLE sessions ADD COLUMN created_by uuid[] NOT NULL DEFAULT '{00000000-0000-0000-0000-000000000000}';
ALTER TABLE passwords ADD COLUMN created_by uuid[] NOT NULL DEFAULT '{00000000-0000-0000-0000-000000000000}';
ALTER TABLE identities ADD COLUMN created_by uuid[] NOT NULL DEFAULT '{00000000-0000-0000-0000-000000000000}';
ALTER TABLE invitations ADD COLUMN created_by uuid[] NOT NULL DEFAULT '{00000000-0000-0000-0000-000000000000}';
ALTER TABLE delegations ADD COLUMN created_by uuid[] NOT NULL DEFAULT '{00000000-0000-0000-0000-000000000000}';
ALTER TABLE approval_votes ADD COLUMN created_by uuid[] NOT NULL DEFAULT '{}';

-- `invited_by`: the users whose invitation opened this account; it is shown, and excludes no decision.
ALTER TABLE passwords ADD COLUMN invited_by uuid[] NOT NULL DEFAULT '{}';
ALTER TABLE identities ADD COLUMN invited_by uuid[] NOT NULL DEFAULT '{}';
ALTER TABLE sessions ADD COLUMN invited_by uuid[] NOT NULL DEFAULT '{}', ADD COLUMN how text NOT NULL DEFAULT '';

-- Existing rows, tenant by tenant: row-level security applies to the owner, too.
DO $$
DECLARE t record;
BEGIN
  FOR t IN SELECT tenant_id FROM tenants LOOP
    PERFORM set_config('perdure.tenant', t.tenant_id, true);

    -- A token and the audit row of its creation have the time of one transaction. Each user who ever created a token
    -- for its creator may have created this one, because the audit trail does not name the token that the creator used.
    WITH RECURSIVE minted AS (
      SELECT DISTINCT a.subject AS owner, a.actor AS minter FROM audit a
      WHERE a.kind = 'user.token_minted' AND a.actor IS NOT NULL AND a.actor::text <> a.subject
    ), chain AS (
      SELECT owner, minter FROM minted
      UNION
      SELECT c.owner, m.minter FROM chain c JOIN minted m ON m.owner = c.minter::text
    ), direct AS (
      SELECT k.token_sha256, a.actor AS minter FROM api_tokens k
      JOIN audit a ON a.kind = 'user.token_minted' AND a.subject = k.user_id::text AND a.at = k.created_at
      WHERE a.actor IS NOT NULL
    )
    UPDATE api_tokens k SET created_by = d.minter || ARRAY(
      SELECT c.minter FROM chain c WHERE c.owner = d.minter::text AND c.minter <> d.minter ORDER BY 1)
    FROM direct d WHERE d.token_sha256 = k.token_sha256;

    -- The tokens of perdure/apps/bootstrap.py are the operator's: the audit trail has no user as their creator.
    UPDATE api_tokens k SET created_by = '{}' WHERE k.label = 'local' AND NOT EXISTS (
      SELECT FROM audit a WHERE a.kind = 'user.token_minted' AND a.subject = k.user_id::text AND a.at = k.created_at);

    -- If no other user ever created a token for a user, the user's passwords, identities, sessions and delegations are
    -- their own.
    UPDATE passwords p SET created_by = '{}' WHERE NOT EXISTS (
        SELECT FROM api_tokens k WHERE k.user_id = p.user_id AND k.created_by <> '{}')
      OR EXISTS (SELECT FROM audit_trail a WHERE a.kind = 'session.begun' AND a.actor = p.user_id AND a.at = p.set_at
        AND a.data->>'how' = 'registration');
    UPDATE identities i SET created_by = '{}' WHERE NOT EXISTS (
      SELECT FROM api_tokens k WHERE k.user_id = i.user_id AND k.created_by <> '{}');
    UPDATE delegations d SET created_by = '{}' WHERE NOT EXISTS (
      SELECT FROM api_tokens k WHERE k.user_id = d.user_id AND k.created_by <> '{}');
    UPDATE sessions s SET how = a.data->>'how' FROM audit_trail a
      WHERE a.kind = 'session.begun' AND a.subject = s.id::text AND a.data->>'how' IS NOT NULL;
    UPDATE sessions s SET created_by = '{}' WHERE s.local OR s.how = 'registration' OR NOT EXISTS (
      SELECT FROM api_tokens k WHERE k.user_id = s.user_id AND k.created_by <> '{}');
    UPDATE invitations i SET created_by = ARRAY[(
      SELECT a.actor FROM audit a WHERE a.kind = 'user.invited' AND a.subject = i.user_id::text
      ORDER BY a.id DESC LIMIT 1)]
      WHERE EXISTS (SELECT FROM audit a WHERE a.kind = 'user.invited' AND a.subject = i.user_id::text);
  END LOOP;
  PERFORM set_config('perdure.tenant', '', true);
END $$;

DROP FUNCTION principal_of(text);
CREATE FUNCTION principal_of(hash text)
  RETURNS TABLE (tenant_id text, user_id uuid, name text, display_name text, roles text[], label text,
    created_by uuid[])
  LANGUAGE sql STABLE SECURITY DEFINER SET search_path = perdure, pg_temp AS $$
    SELECT u.tenant_id, u.id, u.name, u.display_name, u.roles, t.label, t.created_by
    FROM api_tokens t JOIN users u ON u.id = t.user_id AND u.tenant_id = t.tenant_id
    WHERE t.token_sha256 = hash AND t.revoked_at IS NULL AND u.disabled_at IS NULL
  $$;
REVOKE ALL ON FUNCTION principal_of(text) FROM PUBLIC;

DROP FUNCTION principal_of_session(uuid);
CREATE FUNCTION principal_of_session(session uuid)
  RETURNS TABLE (tenant_id text, user_id uuid, name text, roles text[], local boolean, how text, created_by uuid[],
    invited_by uuid[])
  LANGUAGE sql STABLE SECURITY DEFINER SET search_path = perdure, pg_temp AS $$
    SELECT u.tenant_id, u.id, u.name, u.roles, s.local, s.how, s.created_by, s.invited_by
    FROM sessions s JOIN users u ON u.id = s.user_id AND u.tenant_id = s.tenant_id
    WHERE s.id = session AND s.ended_at IS NULL AND s.expires_at > now() AND u.disabled_at IS NULL
  $$;
REVOKE ALL ON FUNCTION principal_of_session(uuid) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION principal_of(text), principal_of_session(uuid) TO perdure_app;

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
