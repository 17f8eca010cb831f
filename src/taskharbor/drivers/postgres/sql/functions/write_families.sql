-- write_families: everything that a step of families has changed, as one JSON object; the step has locked it all. See
-- `_written_step` in family_step.py for what is in it.
create or replace function {schema}.write_families(p_step jsonb) returns void
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_now timestamptz := (p_step ->> 'now')::timestamptz;
    v_ids uuid[];
    v_count integer;
    e jsonb;
begin
    if p_step ? 'remembered' then
        perform lock_idempotency(array(select i::uuid from jsonb_array_elements_text(p_step -> 'remembered') as i));
    end if;
    if p_step ? 'ended' then
        update idempotency k set ends_at = v_now + interval '24 hours'
        where k.job_id = any (array(select i::uuid from jsonb_array_elements_text(p_step -> 'ended') as i));
    end if;
    if p_step ? 'revived' then
        v_ids := array(select i::uuid from jsonb_array_elements_text(p_step -> 'revived') as i);
        delete from idempotency k where k.job_id = any (v_ids) and k.ends_at <= v_now;
        update idempotency k set ends_at = null where k.job_id = any (v_ids) and k.ends_at > v_now;
    end if;
    for e in select * from jsonb_array_elements(p_step -> 'merged') loop
        update alias set target = (e ->> 1)::uuid where target = (e ->> 0)::uuid;
        update idempotency set job_id = (e ->> 1)::uuid where job_id = (e ->> 0)::uuid;
        insert into alias values ((e ->> 0)::uuid, (e ->> 1)::uuid);
    end loop;
    if p_step ? 'dropped' then
        v_ids := array(select i::uuid from jsonb_array_elements_text(p_step -> 'dropped') as i);
        perform drop_jobs(v_ids);
        delete from family where id = any (v_ids);
        delete from edge where dep = any (v_ids);
        delete from edge where dependent = any (v_ids);
        delete from note where id = any (v_ids);
        delete from stripe where parent = any (v_ids);
    end if;
    for e in select * from jsonb_array_elements(p_step -> 'bodies') loop  -- before the states: a job is in the line of its type
        update job set type = e ->> 1, payload = decode(e ->> 2, 'base64'), headers = (e ->> 3)::json, timeout_us = (e ->> 4)::bigint,
            max_attempts = (e ->> 5)::integer, max_stalls = (e ->> 6)::integer, min_backoff_us = (e ->> 7)::bigint,
            max_backoff_us = (e ->> 8)::bigint
        where id = (e ->> 0)::uuid;
    end loop;
    if p_step ? 'new' then
        insert into job (id, seq, queue, type, payload, created_at, headers, idempotency_key, timeout_us, max_attempts, max_stalls,
                         min_backoff_us, max_backoff_us, parent, root)
        select n.id, n.seq, n.queue, n.type, decode(n.payload, 'base64'), n.created_at, n.headers::json, decode(n.once, 'base64'),
               n.timeout, n.max_attempts, n.max_stalls, n.min_backoff, n.max_backoff, n.parent, nullif(n.root, n.parent)
        from jsonb_to_recordset(p_step -> 'new') as n(
            id uuid, seq bigint, queue text, type text, payload text, created_at timestamptz, headers text, once text,
            timeout bigint, max_attempts integer, max_stalls integer, min_backoff bigint, max_backoff bigint, parent uuid, root uuid)
        order by n.id on conflict (id) do nothing;
        get diagnostics v_count = row_count;
        if v_count < jsonb_array_length(p_step -> 'new') then
            -- Another call stored the same id this moment: begin again. Ids that were trusted to be new must be looked up then.
            raise exception 'an id is known' using errcode = case when (p_step ->> 'trusts')::boolean then '23505' else '40001' end;
        end if;
        insert into job_state (id, seq, eligible_at, updated_at, ends_at, version, rank, state, link_flags, is_timed, queue, lane,
                               key, update_flags, result)
        select n.id, n.seq, coalesce(n.run_at, n.created_at), n.updated_at, n.ends_at, n.version, n.rank, n.state, n.links,
               n.run_at is not null, n.queue, n.lane, decode(n.key, 'base64'), n.update_flags, decode(n.result, 'base64')
        from jsonb_to_recordset(p_step -> 'new') as n(
            id uuid, seq bigint, queue text, created_at timestamptz, updated_at timestamptz, ends_at timestamptz, version integer,
            rank smallint, state smallint, links smallint, run_at timestamptz, lane text, key text, update_flags text, result text);
        v_ids := array(select (n ->> 'id')::uuid from jsonb_array_elements(p_step -> 'new') as n);
        perform line_up(v_ids, v_now);
        insert into job_history (id, last_error, failed_at, failure_kind)
        select n.id, n.last_error, n.failed_at, n.failure_kind
        from jsonb_to_recordset(p_step -> 'new') as n(id uuid, last_error text, failed_at timestamptz, failure_kind text)
        where n.last_error is not null or n.failure_kind is not null;
        insert into family_end (id, seq, at, state, is_root, queue)
        select n.id, n.seq, n.ends_at, n.state, n.is_root, n.queue
        from jsonb_to_recordset(p_step -> 'new') as n(
            id uuid, seq bigint, ends_at timestamptz, state smallint, is_root boolean, queue text) where n.state >= 4;
        insert into tally_change (queue, state, change)
        select n.queue, n.state, count(*) from jsonb_to_recordset(p_step -> 'new') as n(queue text, state smallint)
        where n.state >= 4 group by 1, 2;
    end if;
    for e in select * from jsonb_array_elements(p_step -> 'families') loop
        insert into family as f (id, seq, root, parent, deadline, is_open, is_blocked, is_event, is_spared, is_stopping, spares,
                                 queue, parked, family, bonds)
        values ((e ->> 'id')::uuid, (e ->> 'seq')::bigint, (e ->> 'root')::uuid, (e ->> 'parent')::uuid,
                (e ->> 'deadline')::timestamptz, (e ->> 'is_open')::boolean, (e ->> 'is_blocked')::boolean,
                (e ->> 'is_event')::boolean, (e ->> 'is_spared')::boolean, (e ->> 'is_stopping')::boolean,
                (e ->> 'spares')::boolean, e ->> 'queue', (e ->> 'parked')::uuid[], (e ->> 'family')::json, (e ->> 'bonds')::json)
        on conflict (id) do update set
            deadline = excluded.deadline, is_open = excluded.is_open, is_blocked = excluded.is_blocked,
            is_stopping = excluded.is_stopping, spares = excluded.spares, parked = excluded.parked, family = excluded.family,
            bonds = case when f.bonds::text = excluded.bonds::text then f.bonds else excluded.bonds end;
    end loop;
    if p_step ? 'over' then  -- their children are all counted, and their stripes in what was just written
        delete from stripe where parent = any (array(select i::uuid from jsonb_array_elements_text(p_step -> 'over') as i));
    end if;
    for e in select * from jsonb_array_elements(p_step -> 'states') loop
        perform write_state(
            (e ->> 0)::uuid, v_now, (e ->> 2)::smallint, (e ->> 3)::smallint, (e ->> 4)::integer, e ->> 5, (e ->> 6)::smallint,
            (e ->> 7)::timestamptz, (e ->> 8)::timestamptz, (e ->> 9)::integer, (e ->> 10)::integer, (e ->> 11)::integer,
            (e ->> 12)::bigint, (e ->> 13)::boolean, (e ->> 14)::uuid, e ->> 15, (e ->> 16)::timestamptz, (e ->> 17)::timestamptz,
            e ->> 18, e ->> 19, (e ->> 20)::timestamptz, e ->> 21, decode(e ->> 22, 'base64'), (e ->> 23)::json, (e ->> 24)::json);
    end loop;
    for e in select * from jsonb_array_elements(p_step -> 'made') loop
        perform insert_job(
            (e ->> 0)::uuid, (e ->> 1)::bigint, e ->> 2, e ->> 3, decode(e ->> 4, 'base64'), (e ->> 5)::timestamptz, (e ->> 6)::json,
            (e ->> 7)::bigint, (e ->> 8)::integer, (e ->> 9)::integer, (e ->> 10)::bigint, (e ->> 11)::bigint, e ->> 12,
            (e ->> 13)::smallint, (e ->> 14)::timestamptz, (e ->> 15)::bigint, (e ->> 16)::uuid, e ->> 17, (e ->> 18)::timestamptz,
            case when jsonb_typeof(e -> 19) = 'array' then array(select jsonb_array_elements_text(e -> 19)) end);
    end loop;
    for e in select * from jsonb_array_elements(p_step -> 'aliases') loop
        insert into alias values ((e ->> 0)::uuid, (e ->> 1)::uuid);
    end loop;
    for e in select * from jsonb_array_elements(p_step -> 'keys') loop
        perform write_key(e ->> 0, decode(e ->> 1, 'base64'), (e ->> 2)::uuid, (e ->> 3)::uuid);
    end loop;
    for e in select * from jsonb_array_elements(p_step -> 'once') loop  -- without a job: it repeats another one
        if e ->> 2 is null then
            delete from idempotency k where k.queue = e ->> 0 and k.key = decode(e ->> 1, 'base64') and k.ends_at is null
            and not exists (select from job j where j.id = k.job_id);
        else
            update idempotency k set job_id = (e ->> 2)::uuid, ends_at = (e ->> 3)::timestamptz
            where k.queue = e ->> 0 and k.key = decode(e ->> 1, 'base64');
        end if;
    end loop;
    delete from edge where is_park and dependent = any (
        array(select i::uuid from jsonb_array_elements_text(p_step -> 'unparked') as i));
    insert into edge select (i ->> 0)::uuid, (i ->> 1)::bigint, (i ->> 2)::uuid, (i ->> 3)::boolean
    from jsonb_array_elements(p_step -> 'edges') as i on conflict do nothing;
    insert into note select (i ->> 0)::uuid, i ->> 1, (i ->> 2)::integer, (i ->> 3)::timestamptz, decode(i ->> 4, 'base64')
    from jsonb_array_elements(p_step -> 'notes') as i;
    for e in select * from jsonb_array_elements(p_step -> 'owed') loop
        if (e ->> 0)::bigint < 0 then
            insert into owed (kind, job_id, place) values (e ->> 1, (e ->> 2)::uuid, (e ->> 3)::bigint);
        elsif e ->> 3 is null then
            delete from owed where no = (e ->> 0)::bigint;
        else
            update owed set place = (e ->> 3)::bigint where no = (e ->> 0)::bigint;
        end if;
    end loop;
    if p_step ? 'woken' then
        perform wake(array(select jsonb_array_elements_text(p_step -> 'woken')), coalesce((p_step ->> 'always_wake')::boolean, false));
    end if;
    perform pg_notify('taskharbor:' || current_schema(), 'cancel ' || (i ->> 0) || ' ' || (i ->> 1))
    from jsonb_array_elements(p_step -> 'cancels') as i;
end $$;
