-- release_role: give a role up; its term stays known.   $1 role  $2 holder  $3 now
update {schema}.role set expires_at = coalesce($3::timestamptz, clock_timestamp())
where role = $1::text and holder = $2::text and expires_at > coalesce($3::timestamptz, clock_timestamp())
returning role
