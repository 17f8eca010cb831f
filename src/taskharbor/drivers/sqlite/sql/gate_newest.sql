-- gate_newest: the newest entry of a budget.
--   :name
--   returns one instant, or null
select max(at) from th_spent where name = :name
