-- cancel_request: mark the lease of a running job: its end is `cancelled` from here on.
--   :seq :now
update th_lease
set flags = flags | 16, bumps = bumps + 1, updated_at = :now,
    updated_after = (select extensions from th_grant where no = grant_no)
where seq = :seq
