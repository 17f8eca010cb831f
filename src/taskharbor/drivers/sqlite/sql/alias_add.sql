-- alias_add: let an id stand for another job from now on.
--   :id :seq
insert into th_alias (id, seq) values (:id, :seq)
