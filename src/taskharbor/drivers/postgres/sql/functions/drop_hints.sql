-- drop_hints: a claim whose jobs were all settled in this call leaves no hints for the sweep.
create or replace function {schema}.drop_hints(p_leases smallint[], p_tokens uuid[], p_done integer[]) returns void
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
begin
    if p_leases is null then
        delete from lease where token = p_tokens[1] and claimed = cardinality(p_done);
    else
        delete from lease e using (
            select p_tokens[p_leases[d.ord]] as token, count(*) as count from unnest(p_done) as d(ord) group by 1 offset 0) c
        where e.token >= c.token and e.token <= c.token and e.claimed = c.count;
    end if;
end $$;
