-- report_worker_lapsed: forget workers whose report lapsed.
--   :now
delete from th_worker where expires_at <= :now
