-- 0002: the logbook. Cells of bytes, which only their readers decode.

create table th_log (
  book text not null,
  at integer not null,             -- the beginning of its step, or the instant
  writer text not null,            -- a worker or a request; '' for a merged cell
  until integer not null,          -- from then on it is not read any more
  data blob not null,
  primary key (book, at, writer)
) strict, without rowid;
create index th_log_until on th_log (until);
