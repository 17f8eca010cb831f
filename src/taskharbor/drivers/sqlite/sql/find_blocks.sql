-- find_blocks: which blocks of seqs hold jobs of a queue in the states asked for.
--   :queue   :block where to start   one 0 or 1 per state   :limit
--   returns block, ascending
select block from th_tally
where queue = :queue and block >= :block and (
    (:scheduled and scheduled > 0) or (:ready and ready > 0) or (:blocked and blocked > 0)
    or (:running and running > 0) or (:completed and completed > 0) or (:failed and failed > 0)
    or (:cancelled and cancelled > 0))
order by block asc
limit :limit
