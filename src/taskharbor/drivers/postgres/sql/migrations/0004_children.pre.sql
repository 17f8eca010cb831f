-- Children that are nothing but that: a job with a parent and no other bond, no children of its own, nothing that comes
-- after it. `link_flags` says 64 for each of them, and it has no row in `family`: its parent is in `job`, and it is claimed
-- and settled by the statements of plain jobs. A step that makes more of it gives it a row in `family` and 32 in place of 64.
--   stripe     how many such children have completed since the counts of their parent were written: what is open is
--              `open` of the parent less all its stripes. Who completes some adds to the stripe of its own session
--   child_end  completed children by their end, a hundred to a row; all other ends are in `family_end`

alter table {schema}.job add column parent uuid;        -- of every child
alter table {schema}.job add column root uuid;          -- null: the parent is the root
update {schema}.job j set parent = f.parent, root = nullif(f.root, f.parent)
from {schema}.family f where f.id = j.id and f.parent is not null;
create index job_children on {schema}.job (parent, seq) where parent is not null;
drop index {schema}.family_children;
create index family_stopping on {schema}.family (id) where is_stopping and is_open;

alter table {schema}.job_state drop constraint job_state_check;
alter table {schema}.job_state add constraint job_state_check check (
    state in (0, 2, 3, 4, 5, 6) and version >= 1 and fence >= 0 and attempts >= 0 and stalls >= 0 and starts >= 0
    and rank between -100 and 100 and link_flags between 0 and 127) not valid;

create table {schema}.stripe (
    parent  uuid not null,
    no      smallint not null,
    ended   integer not null,
    primary key (parent, no)
) with (
    -- Room for many versions: a stripe is written by every call that completes children.
    fillfactor = 20, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0
);

create table {schema}.child_end (
    no     bigint not null generated always as identity,
    at     timestamptz not null,
    queue  text collate "C" not null,
    ids    uuid[] not null check (cardinality(ids) > 0),
    primary key (queue, at, no)
) with (autovacuum_vacuum_cost_delay = 0);
alter table {schema}.child_end alter column ids set storage plain;

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
            else jsonb_set(f.family::jsonb, '{open}', to_jsonb(coalesce((f.family ->> 'open')::bigint, 0) - t.ended))::json end as family
from {schema}.job j
join {schema}.job_state s on s.id = j.id
left join {schema}.job_history h on h.id = j.id
left join {schema}.family f on f.id = j.id
left join lateral (select sum(c.ended) as ended from {schema}.stripe c where c.parent = f.id) t on true;
