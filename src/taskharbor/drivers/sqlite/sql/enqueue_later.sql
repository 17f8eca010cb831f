-- enqueue_later: line up the new bodies that must wait for their time.
--   :first :last seqs   :now
insert into th_later (queue, run_at, seq, lane, rank, flags, type)
select queue, run_at, seq, requires, -priority, 0, type
from th_body
where seq between :first and :last and run_at > :now
