-- drop_lost: places whose job is not there any more; nobody could ever end them.   $1 ids
delete from {schema}.place p
where p.id = any ($1::uuid[]) and not exists (select from {schema}.job j where j.id = p.id)
returning p.id::text
