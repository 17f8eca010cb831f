-- gate_future: what a budget has of the future, to a clock that went back.
--   :name :now
--   returns one number
select coalesce(sum(count), 0) from th_spent where name = :name and at > :now
