-- A UUIDv7: the millisecond it was made in, then chance.
create or replace function {schema}.new_id() returns uuid
language sql volatile set search_path = {schema}, pg_temp as $$
    select (lpad(to_hex(floor(extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0')
            || '7' || substr(r, 2, 3) || to_hex((get_byte(decode(substr(r, 5, 2), 'hex'), 0) & 63) | 128) || substr(r, 7, 14))::uuid
    from (select replace(gen_random_uuid()::text, '-', '') as r) s
$$;
