-- What ties jobs together. Only jobs with BOUND or CHILD in their flags have rows here.

-- name: family_get
-- The bonds and the family of jobs :seqs, and whether they have notes.
select j.value{ties}
from (select value, value as seq from json_each(:seqs)) j{tables}

-- name: family_ties
-- What `get` and `family_get` select of a job in families.
, tp.id, tr.id, tb.bonds, exists (select 1 from th_note n where n.seq = j.seq),
  tf.waits_for, tf.total, tf.open, tf.failed, tf.excused, tf.cancelled, tf.is_done, tf.own, tf.stopping, tf.spares,
  tf.followers, tf.failures

-- name: family_tables
-- From where.
left join th_bond tb on tb.seq = j.seq
left join th_job tp on tp.seq = tb.parent
left join th_job tr on tr.seq = tb.root
left join th_family tf on tf.seq = j.seq

-- name: family_get_bonds
-- The bonds of jobs :seqs alone.
select b.seq, p.id, r.id, b.bonds
from json_each(:seqs) x
cross join th_bond b on b.seq = x.value
left join th_job p on p.seq = b.parent
left join th_job r on r.seq = b.root

-- name: family_bind
-- A job with a state of its own belongs to others from now on.
update th_job_state set flags = flags & ~256 | 128 where seq = :seq

-- name: family_bind_waiting
-- The same for its place in line.
update th_waiting set flags = flags & ~256 | 128
where queue = :queue and lane = :lane and type = :type and rank = :rank and at = :at and seq = :seq

-- name: family_put_bond
-- The bonds of a job.
insert into th_bond (seq, parent, root, bonds, is_spared, is_event, deadline)
values (?, ?, ?, ?, ?, ?, ?)
on conflict (seq) do update set bonds = excluded.bonds, deadline = excluded.deadline

-- name: family_put
-- The counts of a job.
insert into th_family (seq, waits_for, total, open, failed, excused, cancelled, is_done, own, stopping, spares,
                       followers, failures)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
on conflict (seq) do update set
  waits_for = excluded.waits_for, total = excluded.total, open = excluded.open, failed = excluded.failed,
  excused = excluded.excused, cancelled = excluded.cancelled, is_done = excluded.is_done, own = excluded.own,
  stopping = excluded.stopping, spares = excluded.spares, followers = excluded.followers,
  failures = excluded.failures

-- name: family_parents
-- The parents of :seqs, and how many of these each has.
select parent, count(*) from th_bond where seq in (select value from json_each(:seqs)) group by parent

-- name: family_completed
-- So many children of a job have completed. Repeats `with_end` in model/family_steps.py.
update th_family set open = open - :count where seq = :seq returning open = 0 and is_done

-- name: family_due
-- Whether a consequence is owed, or a deadline has passed.
select exists (select 1 from th_owed where no > 0) or exists (select 1 from th_bond where deadline <= :now)

-- name: family_late
-- Jobs whose deadline has passed.
select seq from th_bond where deadline <= :now order by deadline, seq limit :limit

-- name: family_has_children
-- Whether a job has a child, over or not.
select exists (select 1 from th_bond where parent = (select seq from th_job where id = :id))

-- name: family_open_children
-- The children of a job that are not over, behind :cursor.
select b.seq from th_bond b left join th_job_state s on s.seq = b.seq
where b.parent = (select seq from th_job where id = :id) and b.seq > :cursor and ifnull(s.state, 0) < 4
order by b.seq limit :limit

-- name: family_open_events
-- Those of them that are optional and done by a call.
select b.seq from th_bond b indexed by th_bond_event left join th_job_state s on s.seq = b.seq
where b.is_event and b.parent = (select seq from th_job where id = :id) and ifnull(s.state, 0) < 4
order by b.seq limit :limit

-- name: family_children
-- Children of a job, over or not: (seq, flags, queue, state, since).
select b.seq, s.flags, j.queue, s.state, s.since
from th_bond b cross join th_job_state s on s.seq = b.seq cross join th_job j on j.seq = b.seq
where b.parent = :parent order by b.seq limit :limit

-- name: edge_add
-- A job comes after another one.
insert or replace into th_edge (dep, dependent, is_park) values (?, ?, ?)

-- name: edge_dependents
-- The jobs that come after one or are parked for it, behind :cursor.
select dependent from th_edge where dep = (select seq from th_job where id = :id) and dependent > :cursor
order by dependent limit :limit

-- name: edge_parked_for
-- The ids of the children that a job is parked for.
select j.id from th_edge e indexed by th_edge_park cross join th_job j on j.seq = e.dep
where e.dependent = :dependent and e.is_park

-- name: edge_drop_park
-- It is parked no more.
delete from th_edge where dependent = :dependent and is_park

-- name: edge_drop_dependents
-- Forget the edges of the jobs after one that goes.
delete from th_edge where dep = :seq

-- name: edge_drop
-- Forget its edges to the jobs :after, a JSON array of ids.
delete from th_edge
where dep in (select seq from th_job where id in (select value from json_each(:after))) and dependent = :dependent

-- name: note_get
-- The notes of jobs :seqs, in their order.
select seq, name, data, at from th_note where seq in (select value from json_each(:seqs)) order by seq, no

-- name: note_add
-- A note.
insert into th_note (seq, no, name, at, data) values (?, ?, ?, ?, ?)

-- name: family_drop_notes
-- Forget the notes of :seqs.
delete from th_note where seq in (select value from json_each(:seqs))

-- name: family_drop_bonds
-- Forget how they belong to others.
delete from th_bond where seq in (select value from json_each(:seqs))

-- name: family_drop
-- Forget their counts.
delete from th_family where seq in (select value from json_each(:seqs))

-- name: owed_add
-- A consequence that is to be carried out.
insert into th_owed (kind, id, cursor) values (?, ?, ?)

-- name: owed_next
-- The oldest one.
select no, kind, id, cursor from th_owed order by no limit 1

-- name: owed_count
-- How much is owed, counted up to a limit.
select count(*) from (select 1 from th_owed limit :limit)

-- name: owed_rest
-- It is carried out up to a job.
update th_owed set cursor = :cursor where no = :no

-- name: owed_done
-- It is carried out.
delete from th_owed where no = :no

-- name: kept_add
-- The children among :ends, a JSON array of [seq, at]: they wait for their root.
insert or ignore into th_kept (queue, state, at, seq)
select :queue, :state, x.value ->> 1, b.seq
from json_each(:ends) x cross join th_bond b on b.seq = x.value ->> 0 and b.parent is not null

-- name: kept_roots
-- Those of :seqs that are no children.
select x.value from json_each(:seqs) x left join th_bond b on b.seq = x.value where b.parent is null

-- name: kept_history
-- What the batch of first-try successes knows of :seqs; the batch goes, these jobs stay.
insert or ignore into th_job_history (seq, attempts, stalls, starts, run_at, started_at, settled_token)
select s.seq, 0, 0, 1, j.run_at, f.started_at, f.token
from json_each(:seqs) x
cross join th_job_state s on s.seq = x.value
cross join th_finished f on f.no = s.finished
cross join th_job j on j.seq = s.seq

-- name: kept_state
-- From now on their state is all there is of their end.
update th_job_state
set fence = (select f.started_at from th_finished f where f.no = finished), finished = null, flags = flags | 1
where seq in (select value from json_each(:seqs)) and finished is not null

-- name: kept_leave
-- A child that waits for its root no more.
delete from th_kept where queue = :queue and state = :state and at = :at and seq = :seq

-- name: kept_next_kind
-- The next queue and state with children that wait for their root.
select queue, state from th_kept
where (queue, state, at) > (:queue, :state, 9223372036854775807)
order by queue, state, at limit 1
