-- write_history: what attempts that have just ended leave behind: an entry in the history, and the last error where it is
-- one. The same as `settled` and `stalled` in model/transitions.py. p_done: which of p_ids; p_others: as in `settle_attempts`.
create or replace function {schema}.write_history(
    p_now timestamptz, p_ids uuid[], p_done integer[], p_others json, p_sweeps boolean)
returns void
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
begin
    insert into job_history as h (id, last_error, failed_at, failure_kind, history)
    select s.id,
           case when e.has_error then coalesce(e.error, e.why) end, case when e.has_kind then coalesce(e.failed_at, p_now) end,
           case when e.has_kind then e.failure_kind end,
           json_build_array(json_build_array(
               s.fence, s.worker, micros(s.started_at), micros(p_now),
               case when s.state = 6 then 'cancelled' when s.state = 4 then 'completed' when e.kind = 6 then 'stalled'
                    when s.state = 5 then 'failed' when e.kind = 2 then 'retried' else 'released' end,
               case when s.state <> 4 then case when e.kind = 6 and (p_sweeps or s.state <> 6) then coalesce(e.trace, e.why)
                                       else e.trace end end,
               case when s.state <> 4 then o.error_class end))
    from unnest(p_done) as d(ord)
    cross join lateral (select * from job_state k where k.id = p_ids[d.ord] offset 0) s
    left join json_to_recordset(p_others) as o(ord integer, kind smallint, error text, trace text, failure_kind text,
                                               failed_at timestamptz, error_class text) on o.ord = d.ord
    cross join lateral (
        select coalesce(o.kind, case when p_sweeps then 6 else 1 end) as kind) k
    cross join lateral (
        select k.kind, o.trace, case when k.kind = 2 then o.failed_at end as failed_at,
               case when k.kind = 6 then 'the lease of ' || s.worker || ' ran out: the worker fell silent' end as why, o.error,
               case when k.kind = 6 then 'stalled' else o.failure_kind end as failure_kind,
               s.state = 0 and k.kind = 2 or s.state = 5 or s.state = 6 and k.kind = 5 and o.error is not null as has_error,
               s.state = 0 and k.kind = 2 or s.state = 5 as has_kind) e
    where s.state <> 4 or s.starts > 1
    on conflict (id) do update set
        last_error = coalesce(excluded.last_error, h.last_error),
        failed_at = coalesce(excluded.failed_at, h.failed_at),
        failure_kind = coalesce(excluded.failure_kind, h.failure_kind),
        history = append_history(h.history, excluded.history -> 0);
end $$;
