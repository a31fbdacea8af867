-- In the order in which transactions of the program lock them, so that none meets a deadlock with this migration.
LOCK TABLE perdure.users, perdure.conversations, perdure.turns, perdure.approvals, perdure.tool_calls
  IN ACCESS EXCLUSIVE MODE;
CREATE INDEX turns_queued ON perdure.turns (conversation_id, created_at, id) WHERE status = 'queued';
CREATE INDEX turns_open_by_user ON perdure.turns (user_id) WHERE ended_at IS NULL;
CREATE INDEX turns_newest ON perdure.turns (tenant_id, created_at DESC, id DESC);
CREATE INDEX turns_not_completed ON perdure.turns (tenant_id, created_at DESC, id DESC)
  WHERE status IN ('failed', 'limited', 'stopped', 'replaced');
CREATE INDEX audit_newest ON perdure.audit (tenant_id, id DESC);
