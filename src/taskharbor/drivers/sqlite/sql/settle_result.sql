-- settle_result: keep first-try successes with a result. The row of values is repeated for as many as go in with one
-- statement.
--   ? finished_at   ? version   ? started_at   ? token   then per job: ? seq   ? result
with shared (finished_at, version, started_at, token) as (values (?, ?, ?, ?))
insert into th_outcome (seq, state, finished_at, version, started_at, token, result)
select column1, 'completed', finished_at, version, started_at, token, column2
from (values (?, ?)) cross join shared
