-- step_take_seqs: hand out seqs. Never the same twice: the counter only rises.
--   :next the first seq that is still free after this
update th_meta set next_seq = :next
