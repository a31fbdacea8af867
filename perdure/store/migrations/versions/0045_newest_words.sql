-- The ids of the messages that joined the turn while its request waited, oldest first. The texts stay in `messages` alone.
ALTER TABLE perdure.approvals ADD COLUMN joined_messages uuid[] NOT NULL DEFAULT '{}';

CREATE OR REPLACE TRIGGER audit_noticed AFTER INSERT ON perdure.audit FOR EACH ROW
  WHEN (NEW.kind IN ('approval.opened', 'approval.voted', 'approval.decided', 'approval.expired', 'approval.cancelled',
    'approval.withdrawn', 'approval.voided', 'approval.reissued', 'approval.escalated', 'approval.reassigned',
    'approval.fell_back', 'approval.message_joined', 'turn.limits_raised'))
  EXECUTE FUNCTION perdure.notice_of_audit();
