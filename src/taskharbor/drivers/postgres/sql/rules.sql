-- rules: the settings of every queue.
select queue, settings::text from {schema}.rule
