-- reserve_grant: open the grant that the leases of one claim share.
--   :queue :token :worker :now :expires_at :held   :runs JSON array of [first seq, last seq]
insert into th_grant (queue, token, worker, started_at, expires_at, updated_at, extensions, held, runs)
values (:queue, :token, :worker, :now, :expires_at, :now, 0, :held, :runs)
