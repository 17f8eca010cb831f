-- gate_spend: spend some of a budget.
--   :name :at :count
insert into th_spent (name, at, count) values (:name, :at, :count)
on conflict (name, at) do update set count = count + excluded.count
