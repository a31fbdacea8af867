-- Edits that a tools worker checks before they are recorded: their arguments by digest, for seconds. NULL if the tool's
-- schema says all that its types check.
ALTER TABLE perdure.approvals ADD COLUMN proposed jsonb;
