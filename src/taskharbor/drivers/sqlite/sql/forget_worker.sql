-- forget_worker: drop a worker's report.
--   :id
delete from th_worker where id = :id
