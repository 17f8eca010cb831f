-- leave_grant: count leases out of their grant.
--   :no :count
update th_grant set held = held - :count where no = :no
