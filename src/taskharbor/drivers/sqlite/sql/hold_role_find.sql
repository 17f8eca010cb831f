-- hold_role_find: who holds a role, or held it last.
--   :name
--   returns (holder, term, expires_at)
select holder, term, expires_at from th_role where name = :name
