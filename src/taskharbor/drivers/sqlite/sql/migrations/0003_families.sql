-- 0003: families. A plain job has no row in any of these tables.
--
-- More flags: 128 BOUND has bonds, a family or notes; 256 CHILD the same, when a parent is all that it has: then an
-- ack by sets counts it. Every job with one of them has a row in job_state, from its enqueue on.

create table th_bond (             -- how a job belongs to others, written once
  seq integer primary key,
  parent integer,
  root integer,
  bonds text,                      -- JSON without the parent; null: it has only notes or children
  is_spared integer not null,      -- whether the stop of its parent leaves it alone
  is_event integer not null,       -- whether it is optional and done by a call
  deadline integer                 -- until it is over or stopped
) strict;
create index th_bond_parent on th_bond (parent, seq) where parent is not null;
create index th_bond_event on th_bond (parent, seq) where is_event;
create index th_bond_deadline on th_bond (deadline, seq) where deadline is not null;

create table th_family (           -- its counts: of a job that waits for others, has children, or is waited for
  seq integer primary key,
  waits_for integer not null,
  total integer not null,
  open integer not null check (open >= 0),
  failed integer not null,
  excused integer not null,
  cancelled integer not null,
  is_done integer not null,
  own text not null,
  stopping text,
  spares integer not null,
  followers integer not null,
  failures text                    -- JSON
) strict;

create table th_edge (             -- one job comes after another, or is parked for it
  dep integer not null,
  dependent integer not null,
  is_park integer not null,
  primary key (dep, dependent)
) strict, without rowid;
create index th_edge_park on th_edge (dependent) where is_park;

create table th_note (
  seq integer not null,
  no integer not null,             -- their order
  name text not null,
  at integer not null,
  data blob not null,
  primary key (seq, no)
) strict;

create table th_owed (             -- consequences that are not carried out yet, oldest first
  no integer primary key,
  kind text not null,
  id text not null,
  cursor integer not null
) strict;

create table th_kept (             -- children whose own retention is over: they go with their root
  queue text not null,
  state integer not null,
  at integer not null,
  seq integer not null,
  primary key (queue, state, at, seq)
) strict, without rowid;

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
         coalesce(c.started_at, f.started_at, h.started_at) as started_at,
         iif(s.state > 3, s.since, null) as finished_at,
         c.expires_at as lease_expires_at, c.worker as claimed_by,
         h.last_error, h.failure_kind, ifnull(s.flags & 16 <> 0, 0) as cancel_requested,
         p.id as parent, r.id as root, g.waits_for, g.total as children, g.open as open_children
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
       claimed_by, last_error, failure_kind, cancel_requested, parent, root, waits_for, children, open_children
from job;
