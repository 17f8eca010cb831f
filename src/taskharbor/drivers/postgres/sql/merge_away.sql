-- merge_away: an id stands for another job from now on, with all that stood for it.   $1 id   $2 target
with followers as (update {schema}.alias set target = $2::text::uuid where target = $1::text::uuid),
     keys as (update {schema}.idempotency set job_id = $2::text::uuid where job_id = $1::text::uuid)
insert into {schema}.alias values ($1::text::uuid, $2::text::uuid)
