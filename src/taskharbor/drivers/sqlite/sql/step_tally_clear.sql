-- step_tally_clear: forget a block that counts nothing any more.
--   :queue :block
delete from th_tally
where queue = :queue and block = :block
  and scheduled = 0 and ready = 0 and blocked = 0 and running = 0
  and completed = 0 and failed = 0 and cancelled = 0
