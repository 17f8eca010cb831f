-- configure_queue_rules: tell every handle that the rules have changed.
update th_meta set rules = rules + 1
