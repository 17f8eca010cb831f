-- settle_grants: the grants of one token.
--   :token
--   returns (no, queue, worker, started_at, expires_at, extensions, held)
select no, queue, worker, started_at, expires_at, extensions, held
from th_grant where token = :token
