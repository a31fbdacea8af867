-- Webhooks receive a notice when an outdated approval is reissued.
CREATE OR REPLACE TRIGGER audit_noticed AFTER INSERT ON perdure.audit FOR EACH ROW
  WHEN (NEW.kind IN ('approval.opened', 'approval.voted', 'approval.decided', 'approval.expired', 'approval.cancelled',
    'approval.withdrawn', 'approval.voided', 'approval.reissued', 'approval.escalated', 'approval.reassigned',
    'approval.fell_back', 'turn.limits_raised'))
  EXECUTE FUNCTION perdure.notice_of_audit();
