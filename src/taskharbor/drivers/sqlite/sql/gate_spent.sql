-- gate_spent: what is spent of a budget.
--   :name
--   returns one number, or no row
select spent from th_budget where name = :name
