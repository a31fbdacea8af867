-- A temporary table is looked up before every schema that the path names, unless the path names pg_temp itself. This
-- function runs with its owner's rights, so a caller's own "users" must not stand in for ours.
ALTER FUNCTION perdure.principal_of(text) SET search_path = perdure, pg_temp;
