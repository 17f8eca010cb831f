-- The logbook: cells by book, instant and writer.

-- name: log_write
-- A cell.
insert into th_log (book, at, writer, until, data) values (:book, :at, :by, :until, :data)
on conflict (book, at, writer) do update set until = excluded.until, data = excluded.data

-- name: log_delete
-- Delete a cell.
delete from th_log where book = :book and at = :at and writer = :by

-- name: log_read
-- The cells of a book in a range of instants. {order} is asc or desc.
select at, writer, until, data from th_log
where book = :book and at >= :since and at < :until and until > :now
order by at {order}, writer {order} limit :limit

-- name: log_prune
-- Forget cells that are past their time.
delete from th_log where (book, at, writer) in (
  select book, at, writer from th_log where until <= :now order by until limit :limit)
