-- Since when a call waits for a worker that has its tool in the call's version; null while it does not.
ALTER TABLE perdure.tool_calls ADD COLUMN awaits_worker_since timestamptz;
