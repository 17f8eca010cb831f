-- gate_total: keep the running total of a budget.
--   :name :difference :per
insert into th_budget (name, spent, per) values (:name, :difference, :per)
on conflict (name) do update set spent = spent + excluded.spent, per = excluded.per
