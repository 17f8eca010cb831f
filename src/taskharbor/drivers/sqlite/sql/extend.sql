-- Leases counted from now on. Repeats `extended` in model/transitions.py for many jobs at once.

-- name: extend_find
-- The claims that jobs :seqs run under.
select s.seq, s.flags, s.version, s.fence, c.no, c.queue, c.token, c.worker, c.started_at, c.expires_at, c.extensions, c.held
from json_each(:seqs) x
cross join th_job_state s on s.seq = x.value and s.state = 3
cross join th_claim c on c.no = s.claim

-- name: extend_whole
-- All jobs of a claim.
update th_claim set expires_at = :expires_at, updated_at = :now, extensions = extensions + 1 where no = :no

-- name: extend_alone
-- A claim that one job has for itself; its job counts its versions itself.
update th_claim set expires_at = ifnull(:expires_at, expires_at), updated_at = :now where no = :no and held = 1

-- name: extend_part
-- Some jobs of a claim get a claim of their own.
insert into th_claim (queue, token, worker, started_at, expires_at, updated_at, extensions, held, seqs)
select queue, token, worker, started_at, ifnull(:expires_at, expires_at), :now, extensions + :extensions, :held, :seqs
from th_claim where no = :no

-- name: extend_move
-- Jobs :seqs run under another claim.
update th_job_state set claim = :no where seq in (select value from json_each(:seqs))

-- name: extend_progress
-- What a handler reports of its progress.
update th_job_state set progress = :progress where seq = :seq
