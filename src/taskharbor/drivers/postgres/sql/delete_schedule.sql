-- delete_schedule: forget a schedule.   $1 name
delete from {schema}.schedule where name = $1::text returning name
