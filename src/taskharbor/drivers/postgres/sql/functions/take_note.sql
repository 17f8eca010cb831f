-- take_note: keep a new note of a job under its lease, as `note_one` in drivers/family_verbs.py. It changes this one job, so the row of
-- the job is its only lock. Returns since when it is kept, and the version of the job.
--   No row: nothing is written, and `note_one` knows what to answer. The lease does not hold, the job has a key, the name is known, or
--   there are too many notes: MAX_NOTES and MAX_NOTE_BYTES in model/bonds.py.
create or replace function {schema}.take_note(
    p_now timestamptz, p_id uuid, p_token uuid, p_worker text, p_name text, p_data bytea)
returns table (o_at timestamptz, o_version integer)
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_notes record;
begin
    perform from job_state s
    where s.id = p_id and s.state = 3 and s.token = p_token and s.worker = coalesce(p_worker, s.worker) and s.key is null
      and s.ends_at > coalesce(p_now, clock_timestamp()) for update;
    if not found then
        return;
    end if;
    select count(*)::integer as count, coalesce(sum(octet_length(n.data)), 0) as bytes, coalesce(bool_or(n.name = p_name), false) as is_known
    into v_notes from note n where n.id = p_id;
    if v_notes.is_known or v_notes.count >= 1000 or v_notes.bytes + octet_length(p_data) > 4194304 then
        return;
    end if;
    update job_state s set
        version = s.version + 1, updated_at = coalesce(p_now, clock_timestamp()), attempts = 0, stalls = 0,
        link_flags = s.link_flags & ~64 | 32
    where s.id = p_id
    returning s.updated_at, s.version into o_at, o_version;
    insert into note (id, name, no, at, data) values (p_id, p_name, v_notes.count, o_at, p_data);
    if v_notes.count = 0 then  -- it has a row in `family` from now on: as `family_row` in family_rows.py
        insert into family (id, seq, root, parent, is_open, is_blocked, is_event, is_spared, is_stopping, spares, queue, bonds)
        select j.id, j.seq, coalesce(j.root, j.parent, j.id), j.parent, true, false, false, false, false, true, j.queue,
               case when j.parent is not null then json_build_object('parent', j.parent) end
        from job j where j.id = p_id
        on conflict (id) do nothing;
    end if;
    return next;
end $$;
