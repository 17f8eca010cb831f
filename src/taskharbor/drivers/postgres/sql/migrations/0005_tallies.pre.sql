-- Tallies: how many jobs wait and have ended, so that to look costs the same with a thousand jobs and with a million.
--   tally_change  differences: one row per group that a step changes, in its transaction. Nobody updates one, so nobody waits
--   tally         the sums of those that `fold_tallies` has taken up. One session at a time folds, and nobody else writes here
-- What a group has is the sum of both. Groups of waiting jobs (state 0, without copies) have a lane, a rank and a slice: those with
-- a run_at are counted by its five minutes, `slice_of`. Those of jobs that have ended (4, 5, 6, without copies) have only a queue.

create table {schema}.tally (
    slice  timestamptz not null,
    count  bigint not null,
    rank   smallint not null,
    state  smallint not null,
    queue  text collate "C" not null,
    lane   text collate "C" not null,
    primary key (queue, state, lane, rank, slice)
) with (
    -- No index has the count, and a page has room for the next versions of its rows.
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);

create table {schema}.tally_change (
    slice   timestamptz not null default '-infinity',
    change  integer not null,
    rank    smallint not null default 0,
    state   smallint not null default 0,
    queue   text collate "C" not null,
    lane    text collate "C" not null default ''
) with (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_insert_threshold = -1,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off
);

-- When `recount_tallies` is due.
create table {schema}.tally_recount (
    due_at  timestamptz not null
);

-- Jobs with a time, by it: a slice that `now` lies in is counted here.
create index waiting_timed on {schema}.waiting (queue, eligible_at) where is_timed and not is_copy;

-- A store in use: as `recount_tallies` counts. A call that began before this ends with the functions of before and notes no difference:
-- so there is another count when such calls are over.
insert into {schema}.tally (queue, state, lane, rank, slice, count)
select w.queue, 0, w.lane, w.rank,
       case when w.is_timed then date_bin('5 min', w.eligible_at + '299.999999 s', 'epoch') else '-infinity' end, count(*)
from {schema}.waiting w where not w.is_copy group by 1, 3, 4, 5
union all
select e.queue, e.state, '', 0, '-infinity', sum(e.count) from (
    select f.queue, f.state, cardinality(f.ids) as count from {schema}.finished f where not f.is_copy
    union all
    select f.queue, 4, cardinality(f.ids) from {schema}.child_end f
    union all
    select f.queue, f.state, 1 from {schema}.family_end f) e
group by 1, 2;
insert into {schema}.tally_recount
select clock_timestamp() + case when exists (select from {schema}.job) then interval '3 minutes' else interval '1 day' end;
