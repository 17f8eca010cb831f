-- enqueue_body: store the bodies of jobs that share everything but id and payload. The row of values is repeated
-- for as many jobs as go in with one statement.
--   ? first seq   ? queue   ? type   ? requires   ? priority   ? created_at   ? run_at   ? traits
--   then per job: ? its place behind the first seq   ? id   ? payload
with shared (first, queue, type, requires, priority, created_at, run_at, traits) as (
  values (?, ?, ?, ?, ?, ?, ?, ?)
)
insert into th_body (seq, id, queue, type, requires, priority, created_at, run_at, traits, payload)
select first + column1, column2, queue, type, requires, priority, created_at, run_at, traits, column3
from (values (?, ?, ?)) cross join shared
