-- tell_of_cancel: a running job was cancelled; its worker learns it at once.   $1 job   $2 worker
select pg_notify({channel}, 'cancel ' || $1::text || ' ' || $2::text)
