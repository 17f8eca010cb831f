-- info: what time the server has, what it is, how durable, and the newest migration.
select clock_timestamp(), current_setting('server_version'), current_setting('fsync'),
       current_setting('synchronous_commit'), (select max(name) from {schema}.migration)
