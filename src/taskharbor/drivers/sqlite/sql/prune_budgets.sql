-- prune_budgets: the budgets that nobody has touched for longer than their window: those of workers that are gone.
--   :now
--   returns name
select name from th_budget b
where name like 'worker/%'
  and coalesce((select max(at) from th_spent s where s.name = b.name), 0) + per <= :now
