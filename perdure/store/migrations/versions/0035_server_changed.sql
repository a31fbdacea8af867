-- The MCP server of an approved call lists another version of the tool than the published one. The request is outdated
-- until it is reissued.
ALTER TABLE perdure.approvals ADD COLUMN server_changed boolean NOT NULL DEFAULT false;
-- The epochs that no attempt had: each ended the reservation of an attempt whose approval was outdated.
ALTER TABLE perdure.tool_calls ADD COLUMN voided integer NOT NULL DEFAULT 0;
