-- The view `jobs` shows what `find` finds: no speculative copies. `lane` is `requires` under the name that `th_jobs` on SQLite has
-- for it. Columns are never taken away: `speculates_on` stays, and is always null.

create or replace view {schema}.jobs as
select j.id, j.seq, j.queue, j.type,
       case s.state when 0 then case when s.is_timed and s.eligible_at > clock_timestamp() then 'scheduled' else 'ready' end
            when 2 then 'blocked' when 3 then 'running' when 4 then 'completed' when 5 then 'failed' else 'cancelled' end as state,
       -s.rank as priority, s.lane as requires, s.key, j.idempotency_key,
       s.attempts, j.max_attempts, s.stalls, j.max_stalls, s.starts,
       case when s.is_timed then s.eligible_at end as run_at, j.created_at, s.updated_at, s.started_at,
       case when s.state >= 4 then s.ends_at end as finished_at,
       case when s.state = 3 then s.ends_at end as lease_expires_at,
       case when s.state = 3 then s.worker end as claimed_by,
       s.cancel_requested, s.fence, s.version, h.last_error, h.failure_kind, h.failed_at, h.history,
       s.progress, s.result, j.payload, j.headers, j.speculates_on,
       j.parent, coalesce(j.root, j.parent) as root,
       coalesce(f.bonds, case when j.parent is not null then json_build_object('parent', j.parent) end) as bonds,
       case when t.ended is null then f.family
            else jsonb_set(f.family::jsonb, '{open}', to_jsonb(coalesce((f.family ->> 'open')::bigint, 0) - t.ended))::json end as family,
       s.lane
from {schema}.job j
join {schema}.job_state s on s.id = j.id
left join {schema}.job_history h on h.id = j.id
left join {schema}.family f on f.id = j.id
left join lateral (select sum(c.ended) as ended from {schema}.stripe c where c.parent = f.id) t on true
where j.speculates_on is null;
