-- A temporary table is found before every schema of the path, unless the path names pg_temp itself. This function runs
-- with its owner's rights, so it must not read a table "users" that the caller created.
ALTER FUNCTION perdure.principal_of(text) SET search_path = perdure, pg_temp;
