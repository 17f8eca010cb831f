-- speculate_mark: this run has a copy, its first: the end of the job is worth a closer look.
--   :seq
update th_lease set flags = flags | 32 where seq = :seq and flags & 32 = 0
