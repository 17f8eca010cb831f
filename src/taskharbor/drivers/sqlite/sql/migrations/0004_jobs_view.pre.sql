-- 0004: the view th_jobs has the columns of `jobs` on Postgres that were missed: updated_at, payload, and requires, which is lane.

drop view th_jobs;
create view th_jobs as             -- one row per job as people expect it, without speculative copies
with now (us) as (select cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
job as (
  select j.id, j.seq, j.queue, j.type,
         case s.state when 2 then 'blocked' when 3 then 'running' when 4 then 'completed' when 5 then 'failed'
           when 6 then 'cancelled'
           else iif(ifnull(iif(h.seq is null, j.run_at, h.run_at), 0) > now.us, 'scheduled', 'ready')
         end as state,
         j.priority, j.lane, cast(j.key as text) as key,
         ifnull(h.attempts, 0) as attempts, ifnull(h.stalls, 0) as stalls,
         iif(s.state = 3, ifnull(h.starts, 0) + 1, coalesce(h.starts, iif(s.state = 4, 1, 0))) as starts,
         j.created_at, iif(h.seq is null, j.run_at, h.run_at) as run_at,
         coalesce(c.updated_at, s.since, j.created_at) as updated_at,
         coalesce(c.started_at, f.started_at, h.started_at) as started_at,
         iif(s.state > 3, s.since, null) as finished_at,
         c.expires_at as lease_expires_at, c.worker as claimed_by,
         h.last_error, h.failure_kind, ifnull(s.flags & 16 <> 0, 0) as cancel_requested,
         p.id as parent, r.id as root, g.waits_for, g.total as children, g.open as open_children, j.payload
  from th_job j
  cross join now
  left join th_job_state s on s.seq = j.seq
  left join th_job_history h on h.seq = j.seq
  left join th_claim c on c.no = s.claim
  left join th_finished f on f.no = s.finished
  left join th_bond b on b.seq = j.seq
  left join th_job p on p.seq = b.parent
  left join th_job r on r.seq = b.root
  left join th_family g on g.seq = j.seq
  where j.copy_of is null
)
select id, seq, queue, type, state, priority, lane, key, attempts, stalls, starts,
       strftime('%Y-%m-%dT%H:%M:%S', created_at / 1000000, 'unixepoch') || printf('.%06dZ', created_at % 1000000) as created_at,
       strftime('%Y-%m-%dT%H:%M:%S', run_at / 1000000, 'unixepoch') || printf('.%06dZ', run_at % 1000000) as run_at,
       strftime('%Y-%m-%dT%H:%M:%S', started_at / 1000000, 'unixepoch') || printf('.%06dZ', started_at % 1000000) as started_at,
       strftime('%Y-%m-%dT%H:%M:%S', finished_at / 1000000, 'unixepoch') || printf('.%06dZ', finished_at % 1000000) as finished_at,
       strftime('%Y-%m-%dT%H:%M:%S', lease_expires_at / 1000000, 'unixepoch')
         || printf('.%06dZ', lease_expires_at % 1000000) as lease_expires_at,
       claimed_by, last_error, failure_kind, cancel_requested, parent, root, waits_for, children, open_children,
       strftime('%Y-%m-%dT%H:%M:%S', updated_at / 1000000, 'unixepoch') || printf('.%06dZ', updated_at % 1000000) as updated_at,
       payload, lane as requires
from job;
