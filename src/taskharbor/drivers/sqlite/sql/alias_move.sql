-- alias_move: what stood for one job stands for another from now on.
--   :before :after seqs
update th_alias set seq = :after where seq = :before
