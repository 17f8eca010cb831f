-- Families: what ties jobs together. Only jobs with bonds, children, followers or notes are in these tables, and
-- `link_flags` says 32 for each of them; a plain job has no row here and no byte more.
--   family      bonds and counts of a job. The row of its root is the lock of the whole tree
--   edge        which jobs come after a job, or are parked for it
--   note        what handlers remember of their steps
--   owed        what the end of a job still has to do to others
--   family_end  each job of a family that has ended: these are forgotten with their roots, not one by one

alter table {schema}.job_state drop constraint job_state_check;
alter table {schema}.job_state add constraint job_state_check check (
    state in (0, 2, 3, 4, 5, 6) and version >= 1 and fence >= 0 and attempts >= 0 and stalls >= 0 and starts >= 0
    and rank between -100 and 100 and link_flags between 0 and 63) not valid;

create table {schema}.family (
    id           uuid primary key,
    seq          bigint not null,
    root         uuid not null,                         -- itself, if it has no parent
    parent       uuid,
    deadline     timestamptz,                           -- null also when it is over or being stopped
    is_open      boolean not null,
    is_blocked   boolean not null,
    is_event     boolean not null,                      -- optional and done by a call
    is_spared    boolean not null,                      -- a stop of its parent leaves it alone
    is_stopping  boolean not null,                      -- its children are being stopped,
    spares       boolean not null,                      -- but for those
    queue        text collate "C" not null,
    parked       uuid[],                                -- the children that it waits for in the middle of its work
    family       json,
    bonds        json
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0);
create index family_children on {schema}.family (parent, seq) where parent is not null;
create index family_open on {schema}.family (parent, seq) where parent is not null and is_open;
create index family_blocked on {schema}.family (queue, seq) where is_blocked;
create index family_deadlines on {schema}.family (deadline) where deadline is not null;

create table {schema}.edge (
    dep        uuid not null,
    seq        bigint not null,                         -- of the dependent
    dependent  uuid not null,
    is_park    boolean not null,
    primary key (dep, seq, dependent, is_park)
);
create index edge_dependent on {schema}.edge (dependent);

create table {schema}.note (
    id    uuid not null,
    name  text not null,
    no    integer not null,                             -- their order
    at    timestamptz not null,
    data  bytea not null,
    primary key (id, name)
);

create table {schema}.owed (
    no      bigint generated always as identity primary key,
    kind    text not null,                              -- release, stop, events
    job_id  uuid not null,
    place   bigint not null default 0                   -- carried out up to the job with this seq
);

create table {schema}.family_end (
    id       uuid primary key,
    seq      bigint not null,
    at       timestamptz not null,
    state    smallint not null check (state between 4 and 6),
    is_root  boolean not null,
    queue    text collate "C" not null
);
create index family_end_listing on {schema}.family_end (queue, state, seq);
create index family_end_order on {schema}.family_end (queue, state, at, seq);
create index family_end_roots on {schema}.family_end (queue, state, at) where is_root;

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
       f.parent, case when f.root <> f.id then f.root end as root, f.bonds, f.family
from {schema}.job j
join {schema}.job_state s on s.id = j.id
left join {schema}.job_history h on h.id = j.id
left join {schema}.family f on f.id = j.id;
