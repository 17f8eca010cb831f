-- workers: the workers whose report has not lapsed.
--   :now
--   returns JSON
select info from th_worker where expires_at > :now
