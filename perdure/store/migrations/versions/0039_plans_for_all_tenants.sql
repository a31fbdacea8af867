-- A plan that Postgres keeps for all tenants must not follow the statistics of the tenant it was made for. Postgres
-- estimates `current_setting(...)` with the value of that moment, but not a subquery.
DO $$
DECLARE p record; read_once text := '(SELECT \1)'; setting text := '(?<!SELECT )(current_setting\(''[a-z.]+''::text, true\))';
BEGIN
  FOR p IN SELECT tablename, policyname, qual, with_check FROM pg_policies
    WHERE schemaname = 'perdure' AND (qual ~ setting OR with_check ~ setting)
  LOOP
    EXECUTE format('ALTER POLICY %I ON perdure.%I', p.policyname, p.tablename)
      || coalesce(' USING (' || regexp_replace(p.qual, setting, read_once, 'g') || ')', '')
      || coalesce(' WITH CHECK (' || regexp_replace(p.with_check, setting, read_once, 'g') || ')', '');
  END LOOP;
END $$;
