-- extend_progress: store how far a running job is; its end is worth a closer look then.
--   :seq :progress JSON
update th_lease set progress = :progress, flags = flags | 64 where seq = :seq
