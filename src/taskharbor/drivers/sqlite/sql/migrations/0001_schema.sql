-- 0001: jobs, their attempts, and everything around them.
--
-- One layout for every job, whatever its options. A job is split by how often its parts are written, so
-- that no step rewrites a payload:
--   job          the body, written once; its key is the order of enqueues
--   waiting      every ready or scheduled job, in the order of claims
--   job_state    every job that was claimed, blocked or ended: the truth about it from then on
--   job_result   what completed jobs returned
--   job_history  what earlier attempts left: only jobs with PAST in their flags have a row
--   claim        one row per claim, shared by the jobs that run under it
--   finished     one row per batch of jobs that ended together
-- The view jobs shows all of it as one row per job. Instants are microseconds since 1970.
--
-- Flags: 1 PAST has a row in job_history, 2 KEYED, 4 IDEMPOTENT, 8 COPY is a speculative copy,
-- 16 CANCEL was requested, 32 COPIED this run has or had a copy, 64 TIMED `at` is a run_at.
-- States: 0 waiting, 2 blocked, 3 running, 4 completed, 5 failed, 6 cancelled.

create table th_meta (
  only_row integer primary key check (only_row = 1),
  next_seq integer not null,       -- never goes back, so no seq is issued twice
  rules integer not null,          -- + 1 whenever a queue is configured
  timed_until integer not null     -- the latest clock by which a job with a run_at became ready
) strict;
insert into th_meta (only_row, next_seq, rules, timed_until) values (1, 1, 0, 0);

create table th_job (
  seq integer primary key,
  id text not null unique,
  queue text not null,
  type text not null,
  lane text not null,
  priority integer not null check (priority between -100 and 100),
  created_at integer not null,
  run_at integer,                  -- as enqueued; job_history has the present one, where there is a row
  key blob,
  idempotency_key blob,
  options text,                    -- JSON of the options that are not at their default
  copy_of text,                    -- the original of a speculative copy
  payload blob not null
) strict;
create index th_job_copy_of on th_job (copy_of) where copy_of is not null;

create table th_job_state (
  seq integer primary key,
  state integer not null check (state in (0, 2, 3, 4, 5, 6)),
  claim integer,                   -- while it runs
  finished integer,                -- of a first-try success: started_at and token are there
  flags integer not null,
  version integer not null,        -- while it runs: without the extensions of its claim
  fence integer,                   -- null: started_at
  since integer not null,          -- when it ended, was blocked or last changed while waiting
  progress text
) strict;

create table th_job_result (       -- apart, so that an ack does not lengthen the row of its job's state
  seq integer primary key,
  result blob not null
) strict;

create table th_job_history (
  seq integer primary key,
  attempts integer not null,
  stalls integer not null,
  starts integer not null,         -- without the present run
  run_at integer,
  started_at integer,
  settled_token text,
  last_error text,
  failed_at integer,
  failure_kind text,
  history text,                    -- JSON
  update_rule text                 -- JSON; of a blocked job
) strict;

create table th_waiting (          -- its key is the order of claims within a type; scheduled jobs: lane '', type '', rank 0
  queue text not null,
  lane text not null,
  type text not null,
  rank integer not null check (rank between -100 and 100),  -- minus the priority
  at integer not null,             -- run_at, else created_at
  seq integer not null,
  flags integer not null,
  primary key (queue, lane, type, rank, at, seq)
) strict, without rowid;
create index th_waiting_copy on th_waiting (queue) where flags & 8;

create table th_claim (
  no integer primary key,
  queue text not null,
  token text not null,
  worker text not null,
  started_at integer not null,
  expires_at integer not null,
  updated_at integer not null,
  extensions integer not null check (extensions >= 0),
  held integer not null check (held > 0),  -- how many jobs still run under it
  seqs text not null               -- JSON of the jobs that it was made with
) strict;
create index th_claim_expiry on th_claim (queue, expires_at);

create table th_finished (         -- a hint for prune: job_state says which of these jobs are still as they ended
  no integer primary key,
  queue text not null,
  state integer not null check (state in (4, 5, 6)),
  at integer not null,
  started_at integer,              -- this and the token: of first-try successes
  token text,
  seqs text not null               -- JSON
) strict;
create index th_finished_at on th_finished (queue, state, at);

create table th_job_key (          -- one row per key with a live job
  holder integer primary key,      -- the job that waits or runs
  queue text not null,
  key blob not null,
  next integer,                    -- the job that is blocked behind a running holder
  unique (queue, key)
) strict;

create table th_count (            -- the number of jobs per queue and state, by blocks of 1024 seqs
  queue text not null,
  block integer not null,
  scheduled integer not null,
  ready integer not null,
  blocked integer not null,
  running integer not null,
  completed integer not null,
  failed integer not null,
  cancelled integer not null,
  primary key (queue, block)
) strict, without rowid;
create index th_count_block on th_count (block);

create table th_idempotency (
  queue text not null,
  key blob not null,
  id text not null,
  expires_at integer,              -- null: its job has not ended
  primary key (queue, key)
) strict, without rowid;
create index th_idempotency_id on th_idempotency (id);
create index th_idempotency_expiry on th_idempotency (expires_at) where expires_at is not null;

create table th_alias (
  id text primary key,
  seq integer not null
) strict, without rowid;
create index th_alias_seq on th_alias (seq);

create table th_queue_settings (
  queue text primary key,
  settings text not null           -- JSON
) strict, without rowid;

create table th_rate_usage (       -- what was spent of a rate, by instant
  name text not null,
  at integer not null,
  count integer not null check (count >= 0),
  primary key (name, at)
) strict, without rowid;

create table th_rate_total (       -- running totals of rate_usage
  name text primary key,
  spent integer not null,
  per integer not null
) strict, without rowid;

create table th_worker (
  id text primary key,
  expires_at integer not null,
  info text not null               -- JSON
) strict, without rowid;

create table th_type (
  name text primary key,
  info text not null               -- JSON
) strict, without rowid;

create table th_role (
  name text primary key,
  holder text not null,
  term integer not null,
  expires_at integer not null
) strict, without rowid;

create table th_schedule (
  name text primary key,
  entry text not null              -- JSON
) strict, without rowid;

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
         h.last_error, h.failure_kind, ifnull(s.flags & 16 <> 0, 0) as cancel_requested
  from th_job j
  cross join now
  left join th_job_state s on s.seq = j.seq
  left join th_job_history h on h.seq = j.seq
  left join th_claim c on c.no = s.claim
  left join th_finished f on f.no = s.finished
  where j.copy_of is null
)
select id, seq, queue, type, state, priority, lane, key, attempts, stalls, starts,
       strftime('%Y-%m-%dT%H:%M:%S', created_at / 1000000, 'unixepoch') || printf('.%06dZ', created_at % 1000000) as created_at,
       strftime('%Y-%m-%dT%H:%M:%S', run_at / 1000000, 'unixepoch') || printf('.%06dZ', run_at % 1000000) as run_at,
       strftime('%Y-%m-%dT%H:%M:%S', started_at / 1000000, 'unixepoch') || printf('.%06dZ', started_at % 1000000) as started_at,
       strftime('%Y-%m-%dT%H:%M:%S', finished_at / 1000000, 'unixepoch') || printf('.%06dZ', finished_at % 1000000) as finished_at,
       strftime('%Y-%m-%dT%H:%M:%S', lease_expires_at / 1000000, 'unixepoch')
         || printf('.%06dZ', lease_expires_at % 1000000) as lease_expires_at,
       claimed_by, last_error, failure_kind, cancel_requested
from job;
