-- reserve_unready_rows: take rows that were looked up before out of the line; of the last one what is left stands
-- under another seq by now.
--   :queue :lane   :rows JSON array of [rank, eligible_at, seq]
delete from th_ready where queue = :queue and lane = :lane and (rank, eligible_at, seq) in (
  select value ->> 0, value ->> 1, value ->> 2 from json_each(:rows))
