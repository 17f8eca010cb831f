-- Jobs in: bodies, their place in line, their keys. Repeats `enqueue_one` in drivers/lifecycle.py and `new_record` in
-- model/transitions.py for jobs that meet no other one.

-- name: enqueue_bodies
-- Bodies. {shared} are the columns that all jobs of the call share, {own} those in which they differ, and
-- {places} where the latter are in a row of values.
with shared (first, created_at{shared}) as (values {bound}),
given as (values {row})
insert into th_job (seq, id, payload, created_at{shared}{own})
select first + column1, column2, column3, created_at{shared}{places} from given cross join shared

-- name: enqueue_waiting
-- Line up the new jobs :first to :last but for :hidden, a JSON array or null.
insert into th_waiting (queue, lane, type, rank, at, seq, flags)
select queue, iif(run_at > :now, '', lane), iif(run_at > :now, '', type), iif(run_at > :now, 0, -priority),
       ifnull(run_at, created_at), seq,
       iif(key is null, 0, 2) | iif(idempotency_key is null, 0, 4) | iif(run_at is null, 0, 64)
from th_job
where seq between :first and :last
  and (:hidden is null or seq not in (select value from json_each(:hidden)))

-- name: enqueue_keys
-- The new jobs :first to :last hold their keys, as far as these are free.
insert into th_job_key (holder, queue, key)
select seq, queue, key from th_job where seq between :first and :last and key is not null
on conflict (queue, key) do nothing

-- name: enqueue_keys_taken
-- Those of them whose key is taken: (seq, holder, whether that is lost, whether it runs, the blocked job).
select j.seq, k.holder, not exists (select 1 from th_job h where h.seq = k.holder), ifnull(s.state = 3, 0), k.next
from th_job j
cross join th_job_key k on k.queue = j.queue and k.key = j.key and k.holder <> j.seq
left join th_job_state s on s.seq = k.holder
where j.seq between :first and :last

-- name: enqueue_find_idempotency
-- The idempotency keys that have not expired: (queue, key).
with wanted (now, queue, key) as (values (?, ?, ?))
select w.queue, w.key
from wanted w
cross join th_idempotency i on i.queue = w.queue and i.key = w.key
where iif(i.expires_at is null,
          exists (select 1 from th_job j where j.id = i.id) or exists (select 1 from th_alias a where a.id = i.id),
          i.expires_at > w.now)

-- name: enqueue_known
-- Which of :ids have a record or an alias.
select id from th_job where id in (select value from json_each(:ids))
union all
select id from th_alias where id in (select value from json_each(:ids))

-- name: enqueue_remember
-- The idempotency keys of the new jobs :first to :last.
insert into th_idempotency (queue, key, id)
select queue, idempotency_key, id from th_job where seq between :first and :last and idempotency_key is not null
on conflict (queue, key) do update set id = excluded.id, expires_at = null

-- name: enqueue_one
-- One plain job, whose place in line and count are left to the next step (`Step.begin`). Stores nothing if the rules
-- have changed since they were read, if its id is an alias, or if a thousand such jobs wait already.
insert into th_job (seq, id, queue, type, lane, priority, created_at, options, payload)
select new.seq, ?, ?, ?, ?, ?, ?, ?, ?
from (select max(next_seq, ifnull((select max(seq) from th_job), 0) + 1) as seq, next_seq, rules from th_meta) new
where rules = ? and new.seq < next_seq + 1000 and not exists (select 1 from th_alias where id = ?)
