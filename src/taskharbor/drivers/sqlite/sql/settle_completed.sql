-- settle_completed: keep first-try successes without a result.
--   :finished_at :version :started_at :token   :seqs JSON array
insert into th_outcome (seq, state, finished_at, version, started_at, token)
select value, 'completed', :finished_at, :version, :started_at, :token from json_each(:seqs)
