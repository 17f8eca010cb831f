-- Workers, types, roles and schedules.

-- name: worker_put
-- The report of a worker.
insert into th_worker (id, expires_at, info) values (:id, :expires_at, :info)
on conflict (id) do update set expires_at = excluded.expires_at, info = excluded.info

-- name: worker_find
-- A worker.
select expires_at, info from th_worker where id = :id

-- name: worker_forget
-- Forget a worker.
delete from th_worker where id = :id

-- name: worker_forget_expired
-- Forget the workers that no longer report.
delete from th_worker where expires_at <= :now

-- name: workers
-- The workers that report.
select info from th_worker where expires_at > :now

-- name: types
-- What is known of every type.
select info from th_type order by name

-- name: type_find
-- What is known of a type.
select info from th_type where name = :name

-- name: type_put
-- What was learned of a type.
insert into th_type (name, info) values (:name, :info)
on conflict (name) do update set info = excluded.info

-- name: role_find
-- Who holds a role.
select holder, term, expires_at from th_role where name = :name

-- name: role_put
-- Who holds a role from now on.
insert into th_role (name, holder, term, expires_at) values (:name, :holder, :term, :expires_at)
on conflict (name) do update set
  holder = excluded.holder, term = excluded.term, expires_at = excluded.expires_at

-- name: schedule_put
-- A schedule.
insert into th_schedule (name, entry) values (:name, :entry)
on conflict (name) do update set entry = excluded.entry

-- name: schedule_find
-- One schedule.
select entry from th_schedule where name = :name

-- name: schedules
-- All schedules.
select entry from th_schedule order by name

-- name: schedule_delete
-- Forget a schedule.
delete from th_schedule where name = :name
