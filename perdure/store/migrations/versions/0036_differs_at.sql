-- Where an approved call met another version of its tool than the published one: at its MCP server (`server`), or at
-- the workers (`worker`). The request is outdated until it is reissued.
ALTER TABLE perdure.approvals ADD COLUMN differs_at text NOT NULL DEFAULT '';
-- The epochs that no attempt had: each ended the reservation of an attempt whose approval was outdated.
ALTER TABLE perdure.tool_calls ADD COLUMN voided integer NOT NULL DEFAULT 0;
