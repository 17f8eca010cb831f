-- extend_whole: count all leases of a grant anew.
--   :no :expires_at :now
update th_grant set expires_at = :expires_at, updated_at = :now, extensions = extensions + 1
where no = :no
