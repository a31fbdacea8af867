-- The whole protocol of an approval: votes in seats, leases, handovers, holds, withdrawals.
SET LOCAL search_path = perdure;

-- The policy is frozen as the approval is opened; an escalation and a handover change who decides, and nothing else of
-- it. An approval of before has no policy_digest: it is held against none.
ALTER TABLE approvals
  ADD COLUMN reviewers text[] NOT NULL DEFAULT '{}',   -- names; empty: whoever has the role
  ADD COLUMN quorum integer NOT NULL DEFAULT 1 CHECK (quorum > 0),
  ADD COLUMN policy_digest text NOT NULL DEFAULT '',
  ADD COLUMN reject_reasons text[] NOT NULL DEFAULT '{}',
  ADD COLUMN hold_seconds integer NOT NULL DEFAULT 0 CHECK (hold_seconds >= 0),
  ADD COLUMN ready_at timestamptz,                     -- decided, its call does not start before
  ADD COLUMN revision jsonb,                           -- edited while votes are missing: what is voted on now
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
  ADD COLUMN closed_at timestamptz;                    -- withdrawn, or void: after what was decided

-- Lists are by age, whatever else they are narrowed by.
CREATE INDEX approvals_by_age ON approvals (tenant_id, requested_at DESC, id DESC);
-- What the reconciler looks for among many that wait.
CREATE INDEX approvals_to_fall_back ON approvals (tenant_id, fallback_at)
  WHERE status = 'pending' AND fallback_at IS NOT NULL AND fell_back_at IS NULL;
CREATE INDEX approvals_to_escalate ON approvals (tenant_id, expires_at)
  WHERE status = 'pending' AND on_timeout = 'escalate' AND escalated_at IS NULL;
CREATE INDEX approvals_to_start ON approvals (tenant_id, turn_id)
  WHERE status = 'edited' OR status = 'approved' AND kind = 'approval';
CREATE INDEX turns_awaiting ON turns (tenant_id, id) WHERE status = 'awaiting_approval' AND ended_at IS NULL;

-- Every decision that was taken: by whom, in whose seat, on which digest.
-- A decision writes one, so its references are few: the approval has the tenant's, and no user is ever deleted.
CREATE TABLE approval_votes (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id text NOT NULL,
  approval_id uuid NOT NULL REFERENCES approvals ON DELETE CASCADE,
  user_id uuid NOT NULL,
  seat_id uuid NOT NULL,
  role text NOT NULL,                                  -- the one that the seat's owner sat there by
  decision text NOT NULL CHECK (decision IN ('approve', 'edit', 'reject', 'respond')),
  digest text NOT NULL,
  record jsonb NOT NULL,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  voided_at timestamptz                                -- by an edit: it was for the call as it was before
);
-- A seat counts once, and so does a person.
CREATE UNIQUE INDEX approval_votes_by_seat ON approval_votes (approval_id, seat_id) WHERE voided_at IS NULL;
CREATE UNIQUE INDEX approval_votes_by_person ON approval_votes (approval_id, user_id) WHERE voided_at IS NULL;
CREATE INDEX approval_votes_of_person ON approval_votes (user_id, at);

-- Until a date somebody else may sit in one's seat.
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

-- A token's label is told with its owner: the tokens of a local stack have no limit of decisions a minute.
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
