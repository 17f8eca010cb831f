-- wake: jobs became ready in these queues; tell whoever waits for it.   $1 queues
select {schema}.wake($1::text[])
