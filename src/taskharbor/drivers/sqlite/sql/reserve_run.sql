-- reserve_run: the bodies of jobs that stand in line one behind the other.
--   :first :last seqs
--   returns one row: how many, how many have traits, their ids end to end, the sizes of their payloads, the payloads end to end
select count(*), count(traits), group_concat(id, ''), group_concat(length(payload)), cast(group_concat(payload, '') as blob)
from (select id, traits, payload from th_body where seq between :first and :last order by seq)
