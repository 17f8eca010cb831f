-- Included in exchange.lua: an attempt is added to the story of a job. story.py has the layout.

local NO_REST = '\148\192\192\192\192' -- MessagePack: no last error, not failed, no kind, no update
local HISTORY_LENGTH = 10 -- as in model/transitions.py

-- The story with the run that this head describes, ended now: the history of `settled` in model/transitions.py.
-- `tail` is the end of its entry (MessagePack: outcome, error, class of the error); `rest` takes the place of what is
-- behind the attempts, '' keeps it. All is joined at once, because an error may be long.
local function story_with(story, head, now8, tail, rest)
  local name = byte(head, 92)
  local worker = (name < 32 and string.char(160 + name) or string.char(217, name)) .. sub(head, 93, 92 + name)
  local count, size, before, length = 0, 0, '', 28 + #worker + #tail
  if story then
    local first = 6
    count, size = unpack_from('>BI4', story)
    rest = rest ~= '' and rest or sub(story, 6 + size)
    if count == HISTORY_LENGTH then
      first, count = 10 + unpack_from('>I4', story, 6), count - 1
    end
    before = sub(story, first, 5 + size)
  end
  return pack('>BI4', count + 1, #before + 4 + length) .. before .. pack('>I4', length) .. '\151\207' .. sub(head, 52, 59) .. worker
    .. '\207' .. sub(head, 60, 67) .. '\207' .. now8 .. tail .. (rest ~= '' and rest or NO_REST)
end
