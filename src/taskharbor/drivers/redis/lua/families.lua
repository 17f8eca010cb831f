-- What the end of a completed job does to others, as far as a script decides it: its parent counts it and may be over by
-- it, and jobs that waited for it may run. Repeats `_count_end`, `judge`, `_release_after` and `release` in
-- drivers/families.py, `finished` and `released` in model/family_steps.py, for families in which nothing has failed.
-- Whatever is rarer is left to a unit of work. Included in exchange.lua.

local MOST_FOLLOWERS, MOST_LOOKED_AT = 100, 1000 -- of one job, and in one call
local BEYOND = string.rep('\255', 24) -- behind every seq and id
local BONDS, COUNTS = '>BI8I2', '>BI4I4I4I4I4I4' -- the fronts of bonds and family, see family_fields.py

-- `number_of`: the number of a queue whose keys the call has, by its name. `keeps`: whether it keeps completed jobs.
-- `only_counts`: items of the same call are settled later, and what follows from all of them comes behind those.
local function family_ends(data, relatives, now, number_of, keeps, only_counts)
  local open_of, ended_of, ended_now, waiting, changed, finished, looked = {}, {}, {}, {}, {}, {}, 0

  -- A job that waits for others, as it is after the ends before; false for any other.
  local function waiter(id)
    local job = waiting[id]
    if job == nil then
      local head, body, bonds, family, parked = unpack(call('HMGET', data, 'h' .. id, 'b' .. id, 'B' .. id, 'f' .. id, 'P' .. id))
      job = false
      if head and body and family and state_of(head) == BLOCKED and band(byte(family, 1), IS_STOPPING) == 0 then
        job = { id = id, head = head, body = body, bonds = bonds, family = family, parked = parked,
          waits_for = unpack_from('>I4', family, 2) }
      end
      waiting[id] = job
    end
    return job and job.waits_for > 0 and job
  end

  -- How many of these jobs are not over, `cause` being over; nil if one of them did not complete and that counts.
  local function missing_among(names, cause, is_parked)
    local missing = 0
    for from = 1, #names, 16 do
      local name = sub(names, from, from + 15)
      if name ~= cause and not ended_now[name] then
        looked = looked + 1
        local head = call('HGET', data, 'h' .. name)
        local state = head and state_of(head) or COMPLETED -- one that is gone is not waited for
        if state < COMPLETED then
          missing = missing + 1
        elseif state > COMPLETED and not is_parked then
          return nil
        end
      end
    end
    return missing
  end

  local function with_line(job)
    if not job.queue then
      local line, queue = line_in(job.body)
      job.queue, job.line = number_of(queue), line
    end
    return job.queue
  end

  -- How many jobs it waits for once `cause` is over; nil when a unit of work must decide.
  local function left_of(job, cause, is_parked)
    if job.waits_for > 1 then
      return job.waits_for - 1
    end
    local names = job.parked
    if not is_parked then
      local flags, _, count = unpack_from(BONDS, job.bonds)
      if band(flags, IS_SPARED + BY_OTHERS) ~= 0 then
        return nil
      end
      names = sub(job.bonds, 12, 11 + 16 * count)
    end
    local left = missing_among(names, cause, is_parked)
    return left ~= 0 and left or (with_line(job) and 0)
  end

  -- Adds to a plan the jobs that come after one that has completed, each with how many it still waits for; false when a
  -- unit of work must decide.
  local function plan_releases(plan, id, parent)
    if looked >= MOST_LOOKED_AT then
      return false
    end
    local prefix = 'd' .. id
    local members = call('ZRANGEBYLEX', relatives, '[' .. prefix, '(' .. prefix .. BEYOND, 'LIMIT', 0, MOST_FOLLOWERS + 1)
    looked = looked + #members
    if #members > MOST_FOLLOWERS then
      return false
    end
    for _, member in ipairs(members) do
      local other = sub(member, 26)
      local job, is_parked = waiter(other), other == parent
      -- A job that was released before stays released, whatever it came after does again.
      if job and is_parked == (job.parked ~= false) then
        local left = left_of(job, id, is_parked)
        if not left then
          return false
        end
        plan[#plan + 1] = { job = job, left = left }
      end
    end
    return true
  end

  local function open_children(parent)
    return open_of[parent] or tonumber(call('HGET', data, 'O' .. parent) or 0)
  end

  -- A parent that is over with its last child: false if it is not over, nil when a unit of work must decide.
  local function last_of(parent)
    local head, body, bonds, family = unpack(call('HMGET', data, 'h' .. parent, 'b' .. parent, 'B' .. parent, 'f' .. parent))
    if not (head and body and family) then
      return nil
    end
    local flags, waits_for = unpack_from('>BI4', family)
    if band(flags, IS_DONE) == 0 and state_of(head) ~= RUNNING then
      return false -- it is parked; one that runs may be ended by this very call, and items come before consequences
    end
    local is_simple = band(flags, ENDS_WELL) ~= 0 and waits_for == 0 and state_of(head) == BLOCKED and byte(head, 2) == 0
    local job = { id = parent, head = head, body = body, bonds = bonds, family = family }
    return is_simple and with_line(job) and keeps(job.queue) and job or nil
  end

  -- What the end of a job does: each job that ends by it, each parent that counts one, releases. False when a unit of work
  -- must decide.
  local function planned(id, parent, bonds, family)
    local plan, at = { ended = {}, counted = {}, finished = {} }, id
    while true do
      if bonds and band(byte(bonds, 1), HAS_DEADLINE) ~= 0 then
        return false
      end
      plan.ended[#plan.ended + 1] = at
      if family and unpack_from('>I4', family, 22) > 0 and not plan_releases(plan, at, parent) then
        return false
      end
      if not parent then
        return plan
      end
      plan.counted[#plan.counted + 1] = parent
      local above = open_children(parent) <= 1 and last_of(parent)
      if above == nil then
        return false
      elseif not above then
        return plan
      end
      plan.finished[#plan.finished + 1] = above
      at, parent, bonds, family = above.id, parent_in(above.head), above.bonds, above.family
    end
  end

  local function count(parent)
    open_of[parent], ended_of[parent] = open_children(parent) - 1, (ended_of[parent] or 0) + 1
  end

  local function carry_out(plan)
    for _, id in ipairs(plan.ended) do
      ended_now[id] = true
    end
    for _, parent in ipairs(plan.counted) do
      count(parent)
    end
    for _, job in ipairs(plan.finished) do
      finished[#finished + 1] = job
    end
    for _, step in ipairs(plan) do
      step.job.waits_for = step.left
      changed[step.job.id] = step.job
    end
  end

  local ends = { finished = finished }

  -- Ends a completed job; false when a unit of work must do it.
  function ends.add(id, has_fields, parent)
    if not has_fields and open_children(parent) > 1 then
      count(parent)
      return true
    end
    local bonds, family = nil, nil
    if has_fields then
      bonds, family = unpack(call('HMGET', data, 'B' .. id, 'f' .. id))
      local flags, _, total = unpack_from(COUNTS, family or pack(COUNTS, 0, 0, 0, 0, 0, 0, 0))
      if band(flags, IS_STOPPING) ~= 0 or total > 0 then
        return false
      end
    end
    local plan = planned(id, parent, bonds, family)
    if not plan or (only_counts and (plan[1] or plan.finished[1])) then
      return false
    end
    carry_out(plan)
    return true
  end

  -- Adds to fields what the others become. Calls `enter` for each that may run: its queue, line, since when, entry in
  -- `ready`, seq and the name of its head.
  function ends.write(set, delete, enter)
    for parent, ended in pairs(ended_of) do
      call('HINCRBY', data, 'O' .. parent, -ended)
    end
    for id, job in pairs(changed) do
      set('f' .. id, sub(job.family, 1, 1) .. pack('>I4', job.waits_for) .. sub(job.family, 6))
      if job.waits_for == 0 then
        local head, field = job.head, 'h' .. id
        local state, flags, rank, version = unpack_from('>BBBI4', head)
        set(field, pack('>BBBI4I8', state - BLOCKED + WAITING, flags, rank, version + 1, now) .. sub(head, 16))
        local seq, created, run_at = unpack_from('>I8I8I8', head, 24)
        local since, place = run_at > 0 and run_at - 1 or created, us(seq) .. id
        enter(job.queue, job.line, since, job.line .. string.char(rank) .. us(since) .. place, seq, field)
        if job.parked then
          delete('P' .. id)
          for from = 1, #job.parked, 16 do
            call('ZREM', relatives, 'd' .. sub(job.parked, from, from + 15) .. place)
          end
        end
      end
    end
  end
  return ends
end

-- The head of a blocked job that is over: `finished` in model/family_steps.py.
local function finished_head(head, now)
  local relation = parent_in(head) and sub(head, -32) or ''
  local state, flags, rank, version = unpack_from('>BBBI4', head)
  local back = string.rep('\0', 20) .. us(now) .. string.rep('\0', 16)
  if #head > 47 + #relation then
    back = sub(head, 48, 67) .. us(now) .. sub(head, 76, 91)
  end
  return pack('>BBBI4I8', state - BLOCKED + COMPLETED, flags, rank, version + 1, now) .. sub(head, 16, 47) .. back .. '\0' .. relation
end
