-- reserve_fence: a fence above all earlier ones of its job, where the clock alone does not give one.
--   :seq :fence
update th_lease set fence = :fence where seq = :seq
