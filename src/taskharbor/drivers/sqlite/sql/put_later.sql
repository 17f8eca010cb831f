-- put_later: line up one job that must wait for its time.
--   :queue :run_at :seq :lane :rank :flags :type :avoid
insert into th_later (queue, run_at, seq, lane, rank, flags, type, avoid)
values (:queue, :run_at, :seq, :lane, :rank, :flags, :type, :avoid)
