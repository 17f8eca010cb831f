-- count: how many jobs of one queue stand where, as they are kept.
--   :queue
--   returns one row (scheduled, ready, blocked, running, completed, failed, cancelled), all null for no job
select sum(scheduled), sum(ready), sum(blocked), sum(running), sum(completed), sum(failed), sum(cancelled)
from th_tally where queue = :queue
