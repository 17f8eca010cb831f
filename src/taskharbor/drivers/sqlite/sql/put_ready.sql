-- put_ready: line up one job that may run now, or a run of jobs that are alike.
--   :queue :lane :rank :eligible_at :seq :last :timed :flags :type :avoid
insert into th_ready (queue, lane, rank, eligible_at, seq, last, timed, flags, type, avoid)
values (:queue, :lane, :rank, :eligible_at, :seq, :last, :timed, :flags, :type, :avoid)
