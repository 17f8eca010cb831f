-- enqueue_ready: line up the new bodies that may run now, each for itself.
--   :first :last seqs   :now
insert into th_ready (queue, lane, rank, eligible_at, seq, last, timed, flags, type)
select queue, requires, -priority, coalesce(run_at, created_at), seq, seq, run_at is not null, 0, type
from th_body
where seq between :first and :last and (run_at is null or run_at <= :now)
