-- The tables of a store. Functions are in ../functions, one file each; `migrate` applies those whose text changed.
--
-- `job` is what a job does and is hardly ever written twice. `job_state` has one narrow row per job, and it is the
-- truth: every step is an UPDATE of that row. No index of `job_state` has a column that a step changes, so every
-- step is a HOT update. What needs an order, or a look-up by something else, is in a small table beside it, and each
-- of them keeps one promise:
--   waiting    every ready and every scheduled job, and nothing else. Who locks its row may take the job out
--   job_key    every key with a job that waits, runs or is blocked. `holder` waits or runs, `next` is blocked behind it
--   lease      hints for the sweep: each running job is in a row that is due no later than its lease ends
--   finished   each job that has ended, under its queue, state and end
-- THE ORDER OF LOCKS is in docs/reference/postgres.md: a call that waits for a lock may hold only locks that come before it.
--
-- Instants are timestamptz, spans are microseconds. Names compare by their bytes, whatever the database's collation.

create sequence {schema}.job_seq;

create table {schema}.job (
    -- Always there and of fixed width first: reading a row then needs no counting.
    id               uuid primary key,
    seq              bigint not null,                   -- enqueue order
    created_at       timestamptz not null,
    timeout_us       bigint not null default 0 check (timeout_us >= 0),
    max_attempts     integer not null default 0 check (max_attempts >= 0),
    max_stalls       integer not null default 0 check (max_stalls >= 0),
    queue            text collate "C" not null,
    type             text collate "C" not null,
    payload          bytea not null,
    headers          json,                              -- null: none
    idempotency_key  bytea,
    min_backoff_us   bigint,
    max_backoff_us   bigint,
    speculates_on    uuid,                              -- set: a speculative copy of that job
    avoid_worker     text,                              -- a copy: who must not get it,
    avoid_until      timestamptz,                       -- and until when
    avoid_others     text[]                             -- these must not either
) with (autovacuum_vacuum_insert_scale_factor = 0.5, autovacuum_vacuum_cost_delay = 0);
create unique index job_listing on {schema}.job (queue, seq);
create index job_copies on {schema}.job (speculates_on) where speculates_on is not null;

create table {schema}.job_state (
    id                uuid primary key,
    seq               bigint not null,
    eligible_at       timestamptz not null,             -- run_at, else created_at
    updated_at        timestamptz not null,
    started_at        timestamptz,                      -- of the last claim
    ends_at           timestamptz,                      -- running: of its lease. Ended: of the job. Else null
    fence             bigint not null default 0,
    version           integer not null default 1,
    attempts          integer not null default 0,
    stalls            integer not null default 0,
    starts            integer not null default 0,
    rank              smallint not null default 0,      -- minus the priority: smaller goes first
    -- 0 waiting (ready or scheduled: by eligible_at), 2 blocked, 3 running, 4 completed, 5 failed, 6 cancelled
    state             smallint not null,
    -- Why a step of this job concerns other rows too. 1: it has a key. 2: an idempotency key leads to it. 4: it is
    -- a copy. 8: it has had a copy. 16: the run that goes on now has had one. Since 0003, 32: it has a row in
    -- `family`. Since 0004, 64: it has a parent and no such row.
    link_flags        smallint not null default 0,
    is_timed          boolean not null default false,   -- eligible_at is a run_at
    cancel_requested  boolean not null default false,
    queue             text collate "C" not null,
    lane              text collate "C" not null default 'any',
    token             uuid,                             -- running: of its lease. Else: of its last settlement
    worker            text,                             -- of the last claim
    key               bytea,
    update_flags      text,                             -- blocked: what it may change in a merge
    result            bytea,
    progress          json,
    check (state in (0, 2, 3, 4, 5, 6) and version >= 1 and fence >= 0 and attempts >= 0 and stalls >= 0 and starts >= 0
           and rank between -100 and 100 and link_flags between 0 and 31),
    check (case state when 3 then token is not null and worker is not null and ends_at is not null
           when 0 then ends_at is null when 2 then ends_at is null else ends_at is not null end)
) with (
    -- Room for three versions of each row: its updates stay in the page even beside an old snapshot.
    fillfactor = 30, autovacuum_vacuum_scale_factor = 0.2, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- What only some jobs have.
create table {schema}.job_history (
    id            uuid primary key,
    last_error    text,
    failed_at     timestamptz,
    failure_kind  text,
    history       json                                  -- the last ten attempts that were not a first-try success
);

create table {schema}.waiting (
    seq          bigint not null,
    eligible_at  timestamptz not null,
    id           uuid not null,
    rank         smallint not null check (rank between -100 and 100),
    is_timed     boolean not null default false,
    is_copy      boolean not null default false,
    has_run      boolean not null default false,        -- a worker that had a lease of it may still lock its row
    queue        text collate "C" not null,
    lane         text collate "C" not null,
    line         text collate "C" not null,             -- queue/lane/type, for claims that take some types only
    primary key (queue, lane, rank, eligible_at, seq)
) with (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 0.1,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off
);
create index waiting_lines on {schema}.waiting (line, rank, eligible_at, seq);

-- Its row lock is the lock of the key. A claim does not need it: only the holder is ever in `waiting`.
create table {schema}.job_key (
    queue     text collate "C" not null,
    key       bytea not null,
    holder    uuid not null,
    next      uuid,
    next_seq  bigint,
    primary key (queue, key)
) with (
    fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);
create index job_key_blocked on {schema}.job_key (queue, next_seq) where next is not null;

-- A hint, not the truth: heartbeats leave it alone, and an ack drops it when that is cheap. The sweep that finds one due looks at `job_state`.
create table {schema}.lease (
    no          bigint not null generated always as identity,
    expires_at  timestamptz not null,
    queue       text collate "C" not null,
    token       uuid,                                   -- of the claim that made it; null: made by a sweep
    claimed     integer not null default 0,             -- how many jobs that claim took, in all its rows
    ids         uuid[] not null check (cardinality(ids) > 0),
    primary key (queue, expires_at, no)
) with (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);
create index lease_token on {schema}.lease (token);
alter table {schema}.lease alter column ids set storage plain;

-- Completed jobs a hundred to a row; the others one to a row, with their seq, so that they can be listed in order.
create table {schema}.finished (
    no       bigint not null generated always as identity,
    at       timestamptz not null,
    queue    text collate "C" not null,
    state    smallint not null check (state between 4 and 6),
    is_copy  boolean not null default false,
    seq      bigint,
    ids      uuid[] not null check (cardinality(ids) > 0),
    primary key (queue, state, at, no)
) with (autovacuum_vacuum_cost_delay = 0);
create index finished_listing on {schema}.finished (queue, state, seq) where seq is not null;
alter table {schema}.finished alter column ids set storage plain;

-- Ids that lead to another job: absorbed by its key, or merged into it. Never chained.
create table {schema}.alias (
    id      uuid primary key,
    target  uuid not null
);
create index alias_target on {schema}.alias (target);

create table {schema}.idempotency (
    queue    text not null,
    key      bytea not null,
    job_id   uuid not null,
    ends_at  timestamptz,                               -- null while the job lives
    primary key (queue, key)
);
create index idempotency_job on {schema}.idempotency (job_id);
create index idempotency_ends on {schema}.idempotency (ends_at) where ends_at is not null;

-- Settings of a queue, or of the harbor under '*'. `settings` is what the user gave; the rest is what holds.
create table {schema}.queue_settings (
    queue              text primary key,
    settings           json not null,
    paused             boolean not null default false,
    max_running        integer check (max_running >= 0),
    enqueue_count      integer,
    enqueue_us         bigint,
    execute_count      integer,
    execute_us         bigint,
    fail_queue         text,
    has_retention      boolean not null default false,
    keep_completed_us  bigint,                          -- null: for ever
    keep_failed_us     bigint,
    keep_cancelled_us  bigint
);

-- Running jobs where a limit (max_running) counts them; empty where no queue has one.
create table {schema}.slot (
    queue       text collate "C" not null,
    id          uuid not null,
    expires_at  timestamptz not null,
    primary key (queue, id)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0);

-- What was spent of a rate limit, and until when it counts.
create table {schema}.rate_usage (
    kind    text not null,                              -- enqueue, execute, worker, behind
    name    text not null,                              -- a queue, '*', or a worker id
    at      timestamptz not null,
    count   integer not null check (count >= 0),
    until   timestamptz not null,
    primary key (kind, name, at)
);
create index rate_usage_until on {schema}.rate_usage (until);

-- Queues that an idle worker listens to: a call that makes a job ready there sends one notification and deletes the row,
-- so that the next ones send none.
create table {schema}.idle_queue (
    queue  text primary key
);

-- Queues that a job went back to, before its younger ones: claims that start behind the job they took last start
-- from the beginning when they find a new row here. Rows are of no use after a minute.
create table {schema}.handed_back (
    no     bigint generated always as identity primary key,
    queue  text collate "C" not null,
    at     timestamptz not null default clock_timestamp()
);

create table {schema}.worker (
    worker_id   text primary key,
    report      json not null,
    seen_at     timestamptz not null,
    expires_at  timestamptz not null,
    latency_us  bigint,
    samples     integer not null default 0
);

create table {schema}.type (
    type      text primary key,
    usual_us  bigint not null,
    samples   integer not null
);

create table {schema}.role (
    role        text primary key,
    holder      text not null,
    term        bigint not null,
    expires_at  timestamptz not null
);

create table {schema}.schedule (
    name          text primary key,
    schedule      json not null,
    paused        boolean not null,
    last_tick_at  timestamptz not null,
    created_at    timestamptz not null,
    updated_at    timestamptz not null,
    fired_at      timestamptz,
    declared_at   timestamptz
);

-- Every job as one row, to look at.
create view {schema}.jobs as
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
       s.progress, s.result, j.payload, j.headers, j.speculates_on
from {schema}.job j
join {schema}.job_state s on s.id = j.id
left join {schema}.job_history h on h.id = j.id;
