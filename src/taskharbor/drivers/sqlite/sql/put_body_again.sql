-- put_body_again: change what a keyed enqueue or an edit may change about a body.
--   :seq :type :requires :priority :traits :payload
update th_body
set type = :type, requires = :requires, priority = :priority, traits = :traits, payload = :payload
where seq = :seq
