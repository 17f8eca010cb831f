-- learn_type: a folded duration.   $1 type  $2 usual  $3 samples
insert into {schema}.type values ($1, $2, $3)
on conflict (type) do update set usual_us = excluded.usual_us, samples = excluded.samples
