-- extend_split: give some leases of a grant a grant of their own, counted anew.
--   :no :expires_at :now :held   :runs JSON array of [first seq, last seq]
insert into th_grant (queue, token, worker, started_at, expires_at, updated_at, extensions, held, runs)
select queue, token, worker, started_at, :expires_at, :now, extensions + 1, :held, :runs
from th_grant where no = :no
