-- Approvals of more kinds than a call, and a tenant's stricter rules.
SET LOCAL search_path = perdure;

-- A checkpoint shows what a call came to (`result`) under its name (`checkpoint`); `reason` is its rule's message.
ALTER TABLE approvals
  ADD COLUMN kind text NOT NULL DEFAULT 'approval' CHECK (kind IN ('approval', 'checkpoint', 'limit')),
  ADD COLUMN checkpoint text NOT NULL DEFAULT '',
  ADD COLUMN reason text NOT NULL DEFAULT '',
  ADD COLUMN result jsonb;

-- Rule id to the action that this tenant gives it; perdure/core/agents/rules.py lets it be stricter only.
ALTER TABLE tenants ADD COLUMN rule_actions jsonb NOT NULL DEFAULT '{}';
GRANT UPDATE (rule_actions) ON tenants TO perdure_app;

-- Back to where alembic keeps its own table.
SET LOCAL search_path = public;
