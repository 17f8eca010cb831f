-- The tables. `job` says what a job is and is hardly ever written twice.
--
-- Most jobs live a plain life: they wait, are handed out once, and are acknowledged. Such a job has no row
-- of its own that says where it stands: while it waits it is in `ready`, while it runs it is one of many in
-- a row of `held`, and afterwards one of many in a row of `done`. A job with more to tell (scheduled,
-- blocked, keyed, retried, cancelled, failed, with a result, with progress …) has a row in `place`, and
-- what that says is what holds. `unpack` makes such a row out of a plain job; it never goes back, but for
-- scheduled jobs that fall due.
--
-- States: 0 scheduled, 1 ready, 2 blocked, 3 running, 4 completed, 5 failed, 6 cancelled. Instants are
-- timestamptz, spans are microseconds. Names compare by their bytes, whatever the database thinks of words.

create sequence {schema}.job_seq;

create table {schema}.job (
    -- Always there and of fixed width first: reading a row then needs no counting.
    id               uuid primary key,
    seq              bigint not null,
    created_at       timestamptz not null,
    timeout_us       bigint not null default 0 check (timeout_us >= 0),
    max_attempts     integer not null default 0 check (max_attempts >= 0),
    max_stalls       integer not null default 0 check (max_stalls >= 0),
    rank             smallint not null default 0 check (rank between -100 and 100),  -- minus the priority: smaller goes first
    queue            text collate "C" not null,
    lane             text collate "C" not null default 'any',
    type             text collate "C" not null,
    payload          bytea not null,
    run_at           timestamptz,
    headers          json,                      -- null: none
    key              bytea,
    idempotency_key  bytea,
    min_backoff_us   bigint,
    max_backoff_us   bigint,
    speculates_on    uuid,                      -- set: a copy, started beside that job
    avoid_worker     text
) with (autovacuum_vacuum_insert_scale_factor = 0.5, autovacuum_vacuum_cost_delay = 0);
create unique index job_listing on {schema}.job (queue, seq);
create index job_copies on {schema}.job (speculates_on) where speculates_on is not null;

-- Every job that may be handed out now, in the order of claims. Rows come and go and are never changed,
-- except that a plain one may stop being plain.
create table {schema}.ready (
    seq          bigint not null,
    eligible_at  timestamptz not null,                  -- run_at, else created_at
    id           uuid not null,
    rank         smallint not null check (rank between -100 and 100),
    ties         smallint not null default 0 check (ties between 0 and 31),  -- as in place
    is_timed     boolean not null default false,        -- eligible_at is a run_at
    is_plain     boolean not null default true,         -- it has no row in place
    queue        text collate "C" not null,
    lane         text collate "C" not null,
    line         text collate "C" not null,             -- queue/lane/type, for claims that take some types only
    primary key (queue, lane, rank, eligible_at, seq)
) with (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 0.1,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off
);
create index ready_others on {schema}.ready (id) where not is_plain;
create index ready_lines on {schema}.ready (line, rank, eligible_at, seq);

-- Queues that a job went back to, before its younger ones: claims that take up behind the job they took last look
-- from the start again when they find a new row here. Rows are of no use after a minute.
create table {schema}.back (
    no     bigint generated always as identity primary key,
    queue  text collate "C" not null,
    at     timestamptz not null default clock_timestamp()
);

-- Leases of plain jobs: up to 64 that one claim took out of one queue, and still holds. All share token and expiry.
create table {schema}.held (
    no          bigint not null generated always as identity,
    started_at  timestamptz not null,                   -- the fence of its jobs, in microseconds
    expires_at  timestamptz not null,
    updated_at  timestamptz not null,
    extensions  integer not null default 0 check (extensions >= 0),
    queue       text collate "C" not null,
    token       text collate "C" not null,
    worker      text collate "C" not null,
    ids         uuid[] not null,
    seqs        bigint[] not null,                      -- of the same jobs in the same order
    primary key (token, no),
    check (cardinality(ids) > 0 and cardinality(ids) = cardinality(seqs))
) with (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off
);
create index held_expiry on {schema}.held (queue, expires_at);

-- Plain jobs that were completed together: one row per settlement and 1,024 seqs. So the jobs around a seq
-- are in few rows, whatever order they were completed in.
create table {schema}.done (
    no           bigint not null generated always as identity,
    block        bigint not null,                       -- seq / 1024
    started_at   timestamptz not null,
    finished_at  timestamptz not null,
    version      integer not null check (version >= 1),
    queue        text collate "C" not null,
    token        text collate "C" not null,
    seqs         bigint[] not null check (cardinality(seqs) > 0),
    primary key (queue, block, no)
) with (autovacuum_vacuum_cost_delay = 0);
alter table {schema}.done alter column seqs set storage external;
create index done_finished on {schema}.done (queue, finished_at);

create table {schema}.place (
    id                uuid primary key,
    seq               bigint not null,
    eligible_at       timestamptz not null,             -- run_at, else created_at
    updated_at        timestamptz not null,
    fence             bigint not null default 0 check (fence >= 0),
    version           integer not null default 1 check (version >= 1),
    attempts          integer not null default 0 check (attempts >= 0),
    stalls            integer not null default 0 check (stalls >= 0),
    starts            integer not null default 0 check (starts >= 0),
    rank              smallint not null default 0 check (rank between -100 and 100),
    state             smallint not null check (state between 0 and 6),
    -- Why a step of this job concerns other rows too. 1: it has a key. 2: an idempotency key points to
    -- it. 4: it is a copy. 8: it has had a copy. 16: the run that goes on now has had one.
    ties              smallint not null default 0 check (ties between 0 and 31),
    cancel_requested  boolean not null default false,
    queue             text collate "C" not null,
    lane              text collate "C" not null default 'any',
    run_at            timestamptz,
    lease_expires_at  timestamptz,
    started_at        timestamptz,
    finished_at       timestamptz,
    token             text,                             -- running: of its lease; else: of its last settlement
    claimed_by        text,
    key               bytea,
    flags             text,                             -- what a blocked job may change in a merge
    last_error        text,
    failed_at         timestamptz,
    failure_kind      text,
    result            bytea,
    progress          json,
    history           json,
    check (state <> 3 or (token is not null and claimed_by is not null and lease_expires_at is not null)),
    check (state < 4 or finished_at is not null)
) with (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);
-- One partial index per question. The literals in the statements must match these predicates.
create index place_later on {schema}.place (queue, run_at) include (ties) where state = 0;
create index place_leases on {schema}.place (queue, lease_expires_at) where state = 3;
create index place_finished on {schema}.place (queue, state, finished_at) where state >= 4;
create index place_listing on {schema}.place (state, queue, seq) include (ties) where state = 2 or state >= 5;
-- Of one key, at most one job waits and one runs.
create unique index place_key on {schema}.place (queue, key, (state = 3)) where key is not null and state <= 3;

-- Ids that stand for another job: absorbed by its key, or merged into it. Never chained.
create table {schema}.alias (
    id      uuid primary key,
    target  uuid not null
);
create index alias_target on {schema}.alias (target);

create table {schema}.idempotency (
    queue    text not null,
    key      bytea not null,
    job_id   uuid not null,
    ends_at  timestamptz,                       -- null while the job lives
    primary key (queue, key)
);
create index idempotency_job on {schema}.idempotency (job_id);
create index idempotency_ends on {schema}.idempotency (ends_at) where ends_at is not null;

-- Settings of a queue, or of the harbor under '*'. `settings` is what was said; the rest is what holds.
create table {schema}.rule (
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
    keep_completed_us  bigint,                  -- null: for ever
    keep_failed_us     bigint,
    keep_cancelled_us  bigint
);

-- What was spent of a rate limit, and until when it counts.
create table {schema}.spent (
    kind    text not null,                      -- enqueue, execute, worker
    name    text not null,                      -- a queue, '*', or a worker id
    at      timestamptz not null,
    count   integer not null check (count >= 0),
    until   timestamptz not null,
    primary key (kind, name, at)
);
create index spent_until on {schema}.spent (until);

-- Queues that an idle worker listens to: whoever makes a job ready there sends one notification and
-- takes the row away, so that the next ones send none.
create table {schema}.hungry (
    queue  text primary key
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
