-- find_blocks_newest_anywhere: which blocks of seqs hold jobs in the states asked for, whatever their queue.
--   :block where to start   one 0 or 1 per state   :limit
--   returns block, descending
select distinct block from th_tally
where block <= :block and (
    (:scheduled and scheduled > 0) or (:ready and ready > 0) or (:blocked and blocked > 0)
    or (:running and running > 0) or (:completed and completed > 0) or (:failed and failed > 0)
    or (:cancelled and cancelled > 0))
order by block desc
limit :limit
