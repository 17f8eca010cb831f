-- server: whether this server can be used: its version, is it a standby, is it read-only.
select current_setting('server_version_num')::integer, pg_is_in_recovery(),
       current_setting('default_transaction_read_only')::boolean
