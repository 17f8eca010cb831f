-- Wakes one handle for each queue.
--
-- KEYS  the wake lists

for _, key in ipairs(KEYS) do
  wake(key)
end
