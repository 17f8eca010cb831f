-- put_ready: line up one job that may run now.
--   :queue :lane :rank :eligible_at :seq :timed :flags :type :avoid
insert into th_ready (queue, lane, rank, eligible_at, seq, timed, flags, type, avoid)
values (:queue, :lane, :rank, :eligible_at, :seq, :timed, :flags, :type, :avoid)
