-- idempotency_move: the keys of a merged job live as long as the one it was merged into.
--   :before :after ids
update th_idempotency set id = :after where id = :before
