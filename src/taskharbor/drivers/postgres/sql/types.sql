-- types: how long jobs of each type usually take.
select type, usual_us, samples from {schema}.type order by type collate "C"
