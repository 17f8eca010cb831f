-- speculate_mark: a copy of this running job lives: its end is worth a closer look.
--   :seq
update th_lease set flags = flags | 32 where seq = :seq
