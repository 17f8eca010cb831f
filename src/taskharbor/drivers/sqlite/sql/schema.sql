-- schema: what all migrations together make, for reading. A test holds it to them.

CREATE TABLE th_alias (
  id text primary key,
  seq integer not null
) strict, without rowid;

CREATE INDEX th_alias_seq on th_alias (seq);

CREATE TABLE th_body (
  seq integer primary key,
  id text not null unique,
  queue text not null,
  type text not null,
  requires text not null,
  priority integer not null check (priority between -100 and 100),
  created_at integer not null,
  run_at integer,
  traits text,                     -- JSON of the options that are not at their default
  copy_of text,                    -- the original of a speculative copy
  payload blob not null
) strict;

CREATE INDEX th_body_copy_of on th_body (copy_of) where copy_of is not null;

CREATE TABLE th_budget (           -- running totals of th_spent
  name text primary key,
  spent integer not null,
  per integer not null
) strict, without rowid;

CREATE TABLE th_grant (
  no integer primary key,
  queue text not null,
  token text not null,
  worker text not null,
  started_at integer not null,
  expires_at integer not null,
  updated_at integer not null,
  extensions integer not null check (extensions >= 0),
  held integer not null check (held >= 0),  -- how many leases still point here
  runs text not null               -- JSON of those it was made with, as [first seq, last seq]
) strict;

CREATE INDEX th_grant_expiry on th_grant (queue, expires_at);

CREATE TABLE th_idempotency (
  queue text not null,
  key blob not null,
  id text not null,
  expires_at integer,              -- null: its job is not over
  primary key (queue, key)
) strict, without rowid;

CREATE INDEX th_idempotency_expiry on th_idempotency (expires_at) where expires_at is not null;

CREATE INDEX th_idempotency_id on th_idempotency (id);

CREATE TABLE th_key (              -- the live jobs of a key, by place: 0 waits, 1 runs, 2 is blocked
  queue text not null,
  key blob not null,
  place integer not null check (place between 0 and 2),
  seq integer not null,
  primary key (queue, key, place)
) strict, without rowid;

CREATE TABLE th_later (
  queue text not null,
  run_at integer not null,
  seq integer not null,
  lane text not null,
  rank integer not null,
  flags integer not null,
  type text not null,
  avoid text,
  primary key (queue, run_at, seq)
) strict, without rowid;

CREATE TABLE th_lease (            -- a row is one lease, or a run of leases alike
  seq integer primary key,
  last integer not null,           -- the last seq of the run; seq itself for a lease alone
  grant_no integer not null,
  flags integer not null,
  bumps integer not null,          -- changes of this lease alone, part of the job's version
  fence integer,                   -- null: the grant's started_at
  updated_at integer,              -- of the last bump
  updated_after integer,           -- how many extensions of the grant came before it
  progress text
) strict;

CREATE TABLE th_meta (
  only_row integer primary key check (only_row = 1),
  next_seq integer not null,       -- never goes back, so that no seq is ever given twice
  rules integer not null,          -- + 1 whenever a queue is configured
  timed_until integer not null     -- the latest clock by which a job with a run_at was lined up as ready
) strict;

CREATE TABLE th_outcome (          -- a row is one end, or a run of jobs that ended alike
  seq integer primary key,
  last integer not null,           -- the last seq of the run; seq itself for a job alone
  queue text not null,
  state text not null check (state in ('completed', 'failed', 'cancelled')),
  finished_at integer not null,
  version integer,                 -- null: past knows it, and the rest too
  started_at integer,
  token text
) strict;

CREATE INDEX th_outcome_by_time on th_outcome (queue, state, finished_at);

CREATE TABLE th_past (
  seq integer primary key,
  version integer not null,
  blocked integer not null,
  run_at integer,
  failure_kind text,
  data blob not null               -- MessagePack of what body does not say
) strict;

CREATE TABLE th_queue (
  name text primary key,
  settings text not null
) strict, without rowid;

CREATE TABLE th_ready (            -- its key is the order of claims; a row is one job, or a run of jobs alike
  queue text not null,
  lane text not null,
  rank integer not null check (rank between -100 and 100),  -- minus the priority
  eligible_at integer not null,
  seq integer not null,
  last integer not null,           -- the last seq of the run; seq itself for a job alone
  timed integer not null check (timed in (0, 1)),          -- 1: eligible_at is a run_at, which a clock that went back must respect
  flags integer not null,          -- 0: nothing about this job needs a closer look
  type text not null,
  avoid text,                      -- whom a copy avoids: a worker, and perhaps an instant and others who get it then
  primary key (queue, lane, rank, eligible_at, seq)
) strict, without rowid;

CREATE INDEX th_ready_types on th_ready (queue, lane, type, rank, eligible_at, seq);

CREATE TABLE th_result (           -- what first-try successes gave back
  seq integer primary key,
  result blob not null
) strict;

CREATE TABLE th_role (
  name text primary key,
  holder text not null,
  term integer not null,
  expires_at integer not null
) strict, without rowid;

CREATE TABLE th_schedule (
  name text primary key,
  entry text not null
) strict, without rowid;

CREATE TABLE th_spent (
  name text not null,
  at integer not null,
  count integer not null check (count >= 0),
  primary key (name, at)
) strict, without rowid;

CREATE TABLE th_tally (            -- how many jobs of a queue stand where, per 1024 seqs
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

CREATE INDEX th_tally_block on th_tally (block);

CREATE TABLE th_type (
  name text primary key,
  info text not null
) strict, without rowid;

CREATE TABLE th_worker (
  id text primary key,
  expires_at integer not null,
  info text not null
) strict, without rowid;
