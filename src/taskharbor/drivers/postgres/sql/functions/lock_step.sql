-- lock_step: what a step of families begins with. It locks these jobs with their parents, copies and keys, and their trees before
-- them, and reads them. All that this waits for it locks in the order of docs/reference/postgres.md.
--   p_key_queues, p_keys: keys of new jobs. p_once: their idempotency keys, as [[queue, key, id]]; p_queues: where jobs are to be
--   enqueued, whose rates are locked; p_seqs: how many numbers to draw.
--   Returns a first row with the deciding instant, aliases, keys, settings, roots, the jobs of idempotency keys, and the
--   numbers; then a row for each job.
create or replace function {schema}.lock_step(
    p_ids uuid[], p_key_queues text[], p_keys bytea[], p_once jsonb, p_queues text[], p_seqs integer, p_now timestamptz)
returns setof text
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_locked uuid[];
    v_once json;
    v_now timestamptz;
begin
    perform pg_advisory_xact_lock(l.id) from (
        select lock_id('enqueue', r.queue) as id from queue_settings r
        where r.enqueue_count is not null and (r.queue = '*' or r.queue = any (p_queues)) order by 1) l;
    for v_try in 1 .. 1000 loop
        begin
            v_locked := lock_trees_first(p_ids, p_key_queues, p_keys);
            exit;
        exception when sqlstate 'TH001' then  -- every lock since `begin` is released
            v_locked := null;
        end;
    end loop;
    if v_locked is null then
        raise exception 'these jobs never stop moving' using errcode = '40001';
    end if;
    if p_once is not null then
        insert into idempotency as k (queue, key, job_id)
        select distinct on (q.queue, q.key) q.queue, q.key, q.id from (
            select (o.e ->> 0) collate "C" as queue, decode(o.e ->> 1, 'base64') as key, (o.e ->> 2)::uuid as id, o.ord
            from jsonb_array_elements(p_once) with ordinality as o(e, ord)) q
        order by q.queue, q.key, q.ord
        on conflict (queue, key) do update set job_id = k.job_id;
    end if;
    v_now := coalesce(p_now, clock_timestamp());
    if p_once is not null then  -- as in `enqueue`: a key that has expired, or whose job was lost, is free
        select json_agg(json_build_array(k.queue, encode(k.key, 'hex'), case when k.ends_at is null then
                   case when exists (select from job j where j.id = k.job_id) then k.job_id end
                   when k.ends_at > v_now then k.job_id end))
        into v_once from jsonb_array_elements(p_once) as o(e)
        join idempotency k on k.queue = o.e ->> 0 and k.key = decode(o.e ->> 1, 'base64');
    end if;
    return next json_build_array(
        micros(v_now),
        (select json_agg(json_build_array(b.id, b.target)) from unnest(p_ids) as i(id)
         cross join lateral (select * from alias a where a.id = i.id offset 0) b),
        keys_with_holders(v_locked, p_key_queues, p_keys),
        (select json_agg(json_build_array(r.queue, r.settings)) from queue_settings r),
        family_roots(v_locked), v_once,
        array(select nextval('job_seq') from generate_series(1, p_seqs)))::text;
    return query select * from family_jobs(v_locked, true);
end $$;
