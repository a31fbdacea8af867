-- What is known of the failed attempts of a call that may have reached their target, newest first: code, message and
-- failure of each. If the call is not repeated, the person who settles it reads them.
ALTER TABLE perdure.tool_calls ADD COLUMN ends jsonb NOT NULL DEFAULT '[]';
