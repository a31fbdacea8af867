-- The MCP server of an approved call lists another version of the tool than the published one. The request is outdated
-- until it is reissued.
ALTER TABLE perdure.approvals ADD COLUMN server_changed boolean NOT NULL DEFAULT false;
