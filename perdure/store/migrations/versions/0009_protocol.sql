-- The complete protocol of an approval: votes, delegations, claims, reassignments, holds, withdrawals.
SET LOCAL search_path = perdure;

-- The policy is pinned when the approval is opened. Escalations and reassignments change only its reviewers. An
-- approval from before this migration has no policy_digest, and is not compared with a policy.
ALTER TABLE approvals
  ADD COLUMN reviewers text[] NOT NULL DEFAULT '{}',   -- names; empty: all users with the role
  ADD COLUMN quorum integer NOT NULL DEFAULT 1 CHECK (quorum > 0),
  ADD COLUMN policy_digest text NOT NULL DEFAULT '',
  ADD COLUMN reject_reasons text[] NOT NULL DEFAULT '{}',
  ADD COLUMN hold_seconds integer NOT NULL DEFAULT 0 CHECK (hold_seconds >= 0),
  ADD COLUMN ready_at timestamptz,                     -- when a decided call can start
  ADD COLUMN revision jsonb,                           -- an edit before the quorum: the call that is voted on
  ADD COLUMN expires_seconds integer NOT NULL DEFAULT 604800 CHECK (expires_seconds > 0),
  ADD COLUMN on_timeout text NOT NULL DEFAULT 'deny' CHECK (on_timeout IN ('deny', 'escalate')),
  ADD COLUMN escalation_role text NOT NULL DEFAULT 'admin',
  ADD COLUMN escalated_at timestamptz,
  ADD COLUMN assignee uuid REFERENCES users,
  ADD COLUMN fallback_reviewer text NOT NULL DEFAULT '',
  ADD COLUMN fallback_at timestamptz,
  ADD COLUMN fell_back_at timestamptz,
  ADD COLUMN claimed_by uuid REFERENCES users,
  ADD COLUMN claimed_until timestamptz,
  ADD COLUMN withdrawal jsonb,
  ADD COLUMN closed_at timestamptz;                    -- withdrawn or cancelled after the decision

-- Lists are in the order of age, whatever their filters.
CREATE INDEX approvals_by_age ON approvals (tenant_id, requested_at DESC, id DESC);
-- The reconciler finds these few among many pending requests.
CREATE INDEX approvals_to_fall_back ON approvals (tenant_id, fallback_at)
  WHERE status = 'pending' AND fallback_at IS NOT NULL AND fell_back_at IS NULL;
CREATE INDEX approvals_to_escalate ON approvals (tenant_id, expires_at)
  WHERE status = 'pending' AND on_timeout = 'escalate' AND escalated_at IS NULL;
CREATE INDEX approvals_to_start ON approvals (tenant_id, turn_id)
  WHERE status = 'edited' OR status = 'approved' AND kind = 'approval';
CREATE INDEX turns_awaiting ON turns (tenant_id, id) WHERE status = 'awaiting_approval' AND ended_at IS NULL;

-- Every decision: its voter, the reviewer in whose place it counts, and the digest. A decision writes a row, so a row
-- has few references: the approval has the tenant's, and users are never deleted.
CREATE TABLE approval_votes (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id text NOT NULL,
  approval_id uuid NOT NULL REFERENCES approvals ON DELETE CASCADE,
  user_id uuid NOT NULL,
  seat_id uuid NOT NULL,
  role text NOT NULL,                                  -- the role of the reviewer in whose place it counts
  decision text NOT NULL CHECK (decision IN ('approve', 'edit', 'reject', 'respond')),
  digest text NOT NULL,
  record jsonb NOT NULL,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  voided_at timestamptz                                -- by an edit, because the vote was for the earlier call
);
-- A reviewer's place counts once, and so does a user's vote.
CREATE UNIQUE INDEX approval_votes_by_seat ON approval_votes (approval_id, seat_id) WHERE voided_at IS NULL;
CREATE UNIQUE INDEX approval_votes_by_person ON approval_votes (approval_id, user_id) WHERE voided_at IS NULL;
CREATE INDEX approval_votes_of_person ON approval_votes (user_id, at);

-- A user lets another user decide in their place until a date.
CREATE TABLE delegations (
  id uuid PRIMARY KEY,
  tenant_id text NOT NULL REFERENCES tenants,
  user_id uuid NOT NULL REFERENCES users,
  to_user uuid NOT NULL REFERENCES users CHECK (to_user <> user_id),
  until timestamptz NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  ended_at timestamptz
);
CREATE INDEX delegations_to ON delegations (to_user, until) WHERE ended_at IS NULL;
CREATE INDEX delegations_of ON delegations (user_id, created_at DESC);

DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['approval_votes', 'delegations']
  LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
    EXECUTE format('CREATE POLICY own_tenant ON %I USING (tenant_id = current_setting(''perdure.tenant'', true)) '
      'WITH CHECK (tenant_id = current_setting(''perdure.tenant'', true))', t);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %I TO perdure_app, perdure_relay', t);
  END LOOP;
END $$;

-- A token's label is returned with its owner, because tokens of a local stack have no limit of decisions per minute.
DROP FUNCTION principal_of(text);
CREATE FUNCTION principal_of(hash text)
  RETURNS TABLE (tenant_id text, user_id uuid, name text, display_name text, roles text[], label text)
  LANGUAGE sql STABLE SECURITY DEFINER SET search_path = perdure, pg_temp AS $$
    SELECT u.tenant_id, u.id, u.name, u.display_name, u.roles, t.label
    FROM api_tokens t JOIN users u ON u.id = t.user_id AND u.tenant_id = t.tenant_id
    WHERE t.token_sha256 = hash AND t.revoked_at IS NULL AND u.disabled_at IS NULL
  $$;
REVOKE ALL ON FUNCTION principal_of(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION principal_of(text) TO perdure_app;

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
