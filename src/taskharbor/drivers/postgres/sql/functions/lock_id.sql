-- The advisory lock of one thing that must be dealt with one after the other. The order of all locks is in
-- docs/reference/postgres.md.
create or replace function {schema}.lock_id(p_kind text, p_name text, p_key bytea default null) returns bigint
language sql immutable parallel safe
return pg_catalog.hashtextextended(
    {schema_text}::text || '/'::text || p_kind || '/'::text || p_name || '/'::text
    || coalesce(pg_catalog.encode(p_key, 'hex'::text), ''::text), 20::bigint);
