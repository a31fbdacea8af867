-- A model call looks whether earlier turns of its conversation have requests, to mark what was refused.
CREATE INDEX approvals_by_conversation ON perdure.approvals (conversation_id);
