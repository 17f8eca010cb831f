-- gate_unset: an unset budget remembers nothing.
--   :name
delete from th_budget where name = :name
