-- gate_unset_entries: an unset budget remembers nothing.
--   :name
delete from th_spent where name = :name
