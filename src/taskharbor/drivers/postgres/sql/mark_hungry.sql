-- mark_hungry: an idle worker listens to these queues.   $1 queues
insert into {schema}.hungry
select q from unnest($1::text[]) q where not exists (select from {schema}.hungry h where h.queue = q) order by q
on conflict do nothing
