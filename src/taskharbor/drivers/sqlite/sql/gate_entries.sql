-- gate_entries: what was spent of a budget, oldest first.
--   :name
--   returns (at, count)
select at, count from th_spent where name = :name order by at
