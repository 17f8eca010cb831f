-- Spend the enqueue rates for the jobs of a call that are new, as `admit` in drivers/lifecycle.py; one row when a rate refuses it.
create or replace function {schema}.admit(p_ids uuid[], p_queues text[], p_keys bytea[], p_now timestamptz)
returns table (queue text, result text, detail bigint)
language plpgsql set search_path = {schema}, pg_temp as $$
#variable_conflict use_column
declare
    v_limit record;
    v_wait bigint;
    v_limited text;
    v_until bigint;
    v_spends text[] := '{}';
begin
    if not exists (select from queue_settings r where r.enqueue_count is not null) then
        return;
    end if;
    for v_limit in
        with new as (
            select distinct on (i.id) i.queue, i.key
            from unnest(p_ids, p_queues, p_keys) with ordinality as i(id, queue, key, ord)
            where not exists (select from job j where j.id = i.id offset 0)
              and not exists (select from alias a where a.id = i.id offset 0)
              and not exists (select from idempotency k where k.queue = i.queue and k.key = i.key
                              and (k.ends_at is null or k.ends_at > p_now) offset 0)
            order by i.id, i.ord
        ), one as (
            select n.queue from new n where n.key is null
            union all
            select d.queue from (select distinct n.queue, n.key from new n where n.key is not null) d
        ), wanted as (
            select o.queue as name, count(*)::integer as wanted from one o group by o.queue
            union all
            select '*', count(*)::integer from one having count(*) > 0
        )
        select w.name, w.wanted, r.enqueue_count as count, r.enqueue_us as us
        from wanted w join queue_settings r on r.queue = w.name where r.enqueue_count is not null
        order by w.name = '*', w.name
    loop
        if v_limit.wanted > v_limit.count then
            return query select v_limit.name, 'never', v_limit.count::bigint;
            return;
        end if;
        v_wait := budget_wait('enqueue', v_limit.name, v_limit.count, v_limit.us, v_limit.wanted, p_now);
        if v_wait > 0 and v_limited is null then
            v_limited := v_limit.name;
            v_until := v_wait;
        end if;
        v_spends := v_spends || array[v_limit.name, v_limit.us::text, v_limit.wanted::text];
    end loop;
    if v_limited is not null then  -- what can never pass was refused first
        return query select v_limited, 'limited', v_until;
        return;
    end if;
    for i in 0 .. cardinality(v_spends) / 3 - 1 loop
        perform budget_spend('enqueue', v_spends[3 * i + 1], v_spends[3 * i + 2]::bigint,
                             v_spends[3 * i + 3]::integer, p_now);
    end loop;
end $$;
