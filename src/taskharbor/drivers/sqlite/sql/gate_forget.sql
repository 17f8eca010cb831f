-- gate_forget: what has left the window of a budget.
--   :name :until
--   returns one number
select coalesce(sum(count), 0) from th_spent where name = :name and at <= :until
