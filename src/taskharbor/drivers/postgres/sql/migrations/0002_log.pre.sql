-- The logbook: cells of bytes, which only their readers decode.

create table {schema}.log (
    book    text collate "C" not null,
    at      timestamptz not null,                       -- the beginning of its step, or the instant
    writer  text collate "C" not null,                  -- a worker or a request; '' for a merged cell
    until   timestamptz not null,                       -- from then on it is not read any more
    data    bytea not null,
    primary key (book, at, writer)
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
create index log_until on {schema}.log (until);
-- Cells are small and compressed already, and rewritten every few seconds: no search for shorter forms of them.
alter table {schema}.log alter column data set storage external;
