-- Webhooks for approvals, and the notices that wait for delivery.
SET LOCAL search_path = perdure;

-- A receiver's key is derived from the deployment's key with this id, and is not stored.
CREATE TABLE webhooks (
  id uuid PRIMARY KEY,
  tenant_id text NOT NULL REFERENCES tenants,
  url text NOT NULL,
  with_args boolean NOT NULL,
  key_id text NOT NULL,
  made_by uuid NOT NULL REFERENCES users,
  made_at timestamptz NOT NULL DEFAULT now(),
  ended_at timestamptz
);
CREATE INDEX webhooks_of_tenant ON webhooks (tenant_id) WHERE ended_at IS NULL;

-- Contains only ids: the content is read when the notice is sent. A delivered notice is deleted.
CREATE TABLE notices (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  tenant_id text NOT NULL,
  webhook_id uuid NOT NULL REFERENCES webhooks,
  approval_id uuid NOT NULL,
  event text NOT NULL,
  at timestamptz NOT NULL DEFAULT now(),
  due_at timestamptz NOT NULL DEFAULT now(),
  attempts integer NOT NULL DEFAULT 0,
  problem text,
  gave_up_at timestamptz
);
CREATE INDEX notices_due ON notices (due_at, at) WHERE gave_up_at IS NULL;
CREATE INDEX notices_of_webhook ON notices (webhook_id);

-- Each change of an approval is audited in its own transaction. This trigger writes the notice in the same one.
CREATE FUNCTION notice_of_audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO perdure.notices (tenant_id, webhook_id, approval_id, event)
    SELECT NEW.tenant_id, w.id, NEW.subject::uuid, NEW.kind FROM perdure.webhooks w
    WHERE w.tenant_id = NEW.tenant_id AND w.ended_at IS NULL;
  RETURN NULL;
END $$;
CREATE TRIGGER audit_noticed AFTER INSERT ON audit FOR EACH ROW
  WHEN (NEW.kind IN ('approval.opened', 'approval.voted', 'approval.decided', 'approval.expired', 'approval.cancelled',
    'approval.withdrawn', 'approval.voided', 'approval.escalated', 'approval.reassigned', 'approval.fell_back',
    'turn.limits_raised'))
  EXECUTE FUNCTION notice_of_audit();

DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['webhooks','notices']
  LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
    EXECUTE format('CREATE POLICY own_tenant ON %I USING (tenant_id = current_setting(''perdure.tenant'', true)) '
      'WITH CHECK (tenant_id = current_setting(''perdure.tenant'', true))', t);
  END LOOP;
END $$;
CREATE POLICY relay_delivers ON notices TO perdure_relay USING (true);

GRANT SELECT, INSERT, UPDATE, DELETE ON webhooks, notices TO perdure_app, perdure_relay;

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
