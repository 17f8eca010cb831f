-- get_seq_of: where some ids are, for callers that need no more.
--   :ids JSON array
--   returns (id, seq)
select id, seq from th_body where id in (select value from json_each(:ids))
