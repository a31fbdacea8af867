-- Approvals of more kinds than tool calls, and a tenant's stricter rules.
SET LOCAL search_path = perdure;

-- A checkpoint shows the result of a call (`result`) under its name (`checkpoint`); `reason` is the message of its
-- rule.
ALTER TABLE approvals
  ADD COLUMN kind text NOT NULL DEFAULT 'approval' CHECK (kind IN ('approval', 'checkpoint', 'limit')),
  ADD COLUMN checkpoint text NOT NULL DEFAULT '',
  ADD COLUMN reason text NOT NULL DEFAULT '',
  ADD COLUMN result jsonb;

-- Maps the id of a rule to this tenant's action for it; perdure/core/agents/rules.py allows only stricter actions.
ALTER TABLE tenants ADD COLUMN rule_actions jsonb NOT NULL DEFAULT '{}';
GRANT UPDATE (rule_actions) ON tenants TO perdure_app;

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
