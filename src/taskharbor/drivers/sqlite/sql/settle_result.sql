-- settle_result: keep what first-try successes gave back. The row of values is repeated for as many as go in with one
-- statement.
--   per job: ? seq   ? result
insert into th_result (seq, result) values (?, ?)
