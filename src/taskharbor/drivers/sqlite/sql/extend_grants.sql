-- extend_grants: the grants behind some leases.
--   :nos JSON array
--   returns (no, queue, token, worker, started_at, expires_at, extensions, held)
select no, queue, token, worker, started_at, expires_at, extensions, held
from th_grant where no in (select value from json_each(:nos))
