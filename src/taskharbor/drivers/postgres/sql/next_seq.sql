-- next_seq: the next place in enqueue order.
select nextval('{schema}.job_seq')
