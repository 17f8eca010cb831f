-- gate_futures: forget what a budget has of the future.
--   :name :now
delete from th_spent where name = :name and at > :now
