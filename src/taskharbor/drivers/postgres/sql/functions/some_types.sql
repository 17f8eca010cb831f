-- some_types: lock the first jobs of a queue, a lane and a rank that are of these types, in order, behind a place.
--   Most workers know the types of most jobs that wait, so the first look is along the line of all. Where jobs of other
--   types are in the way, as many as there may be, each type's own line is asked for its first.
create or replace function {schema}.some_types(
    p_queue text, p_lane text, p_types text[], p_rank smallint, p_at timestamptz, p_seq bigint, p_until timestamptz,
    p_limit integer, p_worker text, p_now timestamptz)
returns table (rows tid[], ids uuid[])
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_lines text[];
    v_at timestamptz := p_at;
    v_seq bigint := p_seq;
    v_walks integer := 3;
    v_step integer := p_limit + 8;
    v_seen integer;
    v_mine tid[];
    v_rows tid[];
    v_ids uuid[];
    v_stops boolean;
begin
    select array(select p_queue || '/' || p_lane || '/' || t.name from unnest(p_types) as t(name)),
           exists (select from family f where f.is_stopping and f.is_open)
    into v_lines, v_stops;
    loop
        if v_walks > 0 then
            select array_agg(e.row) filter (where e.line = any (v_lines)), count(*),
                   (array_agg(e.eligible_at))[count(*)], (array_agg(e.seq))[count(*)]
            into v_mine, v_seen, v_at, v_seq
            from (
                select w.ctid as row, w.line, w.eligible_at, w.seq from waiting w
                where w.queue = p_queue and w.lane = p_lane and w.rank = p_rank and w.eligible_at <= p_until
                  and (w.eligible_at, w.seq) > (v_at, v_seq)
                order by w.eligible_at, w.seq
                limit v_step) e;
        else
            select array_agg(e.row), count(*), (array_agg(e.eligible_at))[count(*)], (array_agg(e.seq))[count(*)]
            into v_mine, v_seen, v_at, v_seq
            from (
                select f.* from unnest(v_lines) as l(name)
                cross join lateral (
                    select w.ctid as row, w.eligible_at, w.seq from waiting w
                    where w.line = l.name and w.rank = p_rank and w.eligible_at <= p_until
                      and (w.eligible_at, w.seq) > (v_at, v_seq)
                    order by w.eligible_at, w.seq
                    limit v_step) f
                order by f.eligible_at, f.seq
                limit v_step) e;
        end if;
        if v_mine is not null then
            select array_agg(w.row), array_agg(w.id) into v_rows, v_ids from (
                select w.ctid as row, w.id from waiting w
                where w.ctid = any (v_mine)
                  and (not w.is_timed or w.eligible_at <= p_now)
                  and (not w.is_copy or may_copy(w.id, p_worker, p_now))
                  and (not v_stops or not is_stopped_child(w.id))
                  and (not w.has_run or (select true from job_state s where s.id = w.id
                       and (s.link_flags & 32 = 0 or may_run(s.id, p_now)) for update skip locked))
                order by w.eligible_at, w.seq
                limit p_limit - coalesce(cardinality(rows), 0)
                for update skip locked) w;
            rows := rows || v_rows;
            ids := ids || v_ids;
        end if;
        exit when v_seen < v_step or cardinality(rows) >= p_limit;
        v_walks := v_walks - 1;
        v_step := v_step * 2;
    end loop;
    return next;
end $$;
