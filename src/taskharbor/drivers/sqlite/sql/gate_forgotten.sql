-- gate_forgotten: forget what has left the window of a budget.
--   :name :until
delete from th_spent where name = :name and at <= :until
