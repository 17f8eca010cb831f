-- hold_role: give a role to its holder.
--   :name :holder :term :expires_at
insert into th_role (name, holder, term, expires_at) values (:name, :holder, :term, :expires_at)
on conflict (name) do update set
  holder = excluded.holder, term = excluded.term, expires_at = excluded.expires_at
