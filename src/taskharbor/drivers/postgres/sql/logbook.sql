-- The logbook: cells by book, instant and writer.

-- name: write_log
-- $1 books  $2 instants  $3 writers  $4 until  $5 data  $6 $7 $8 books, instants and writers of cells to delete: none is among the first
with gone as (
    delete from {schema}.log l
    using unnest($6::text[], $7::timestamptz[], $8::text[]) as g(book, at, writer)
    where l.book = g.book and l.at = g.at and l.writer = g.writer
)
insert into {schema}.log (book, at, writer, until, data)
select * from unnest($1::text[], $2::timestamptz[], $3::text[], $4::timestamptz[], $5::bytea[])
on conflict (book, at, writer) do update set until = excluded.until, data = excluded.data

-- name: read_log
-- the cells of a book in a range of instants.   $1 book  $2 since  $3 until  $4 limit  $5 now
select l.at, l.writer, l.until, l.data from {schema}.log l
where l.book = $1::text and l.at >= $2::timestamptz and l.at < $3::timestamptz
  and l.until > coalesce($5::timestamptz, clock_timestamp())
order by l.at {order}, l.writer {order} limit $4::integer
