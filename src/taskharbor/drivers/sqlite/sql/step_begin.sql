-- step_begin: what every step needs first: the next seq, and the version of the rules.
--   returns one row (next_seq, rules)
select next_seq, rules from th_meta
