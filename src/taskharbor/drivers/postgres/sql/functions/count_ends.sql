-- count_ends: count children that have completed at their parents, each in the stripe p_no. Nobody waits here but for a session with
-- the same number, and no session that waits for a job has a stripe.
--   Returns the parents, by how many children of theirs are open still, as far as this transaction can see: 0 and the id for none,
--   1 for few and 2 for many, with spaces between. Others may end some this moment: who leaves few must look again after
--   its commit, for the last one to commit sees them all. More calls than that can hardly be under way at once; because they can, who
--   leaves many looks again later, too.
--   What is counted is as `_count_end` in drivers/families.py.
create or replace function {schema}.count_ends(p_ids uuid[], p_no integer) returns text
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_parents uuid[];
    v_counts bigint[];
begin
    select array_agg(c.parent), array_agg(c.count) into v_parents, v_counts from (
        select j.parent, count(*) as count from unnest(p_ids) as i(id)
        cross join lateral (select k.parent from job k where k.id = i.id offset 0) j group by 1 order by 1) c;
    insert into stripe as t (parent, no, ended)
    select c.parent, p_no, c.count from unnest(v_parents, v_counts) as c(parent, count)
    on conflict (parent, no) do update set ended = t.ended + excluded.ended;
    return (
        select string_agg(case when o.count <= 0 then '0' when o.count <= greatest(256, 64 * c.count) then '1' else '2' end || c.parent, ' ')
        from unnest(v_parents, v_counts) as c(parent, count)
        cross join lateral (
            select coalesce((f.family ->> 'open')::bigint, 0) - (select sum(t.ended) from stripe t where t.parent = c.parent) as count
            from family f where f.id = c.parent offset 0) o);
end $$;
