-- read_locked: whole records, read after they were locked.   $1 ids
select {columns} from {schema}.place p join {schema}.job j on j.id = p.id where p.id = any($1::uuid[])
