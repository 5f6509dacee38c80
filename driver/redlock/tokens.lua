-- Stands before scripts that set a name's counter of tokens, which is KEYS[2].

-- Lua would write a number of this size with an exponent.
local function digits(n)
    return string.format('%.0f', n)
end

-- Returns the next token: the last one plus one, or the time in µs, which is more than any token before, if that isn't
-- known. The counter is kept for retention, in ms. An error is returned as such.
local function mint(retention)
    local token = redis.pcall('INCR', KEYS[2])
    if type(token) == 'table' then
        local err = token.err
        if not (string.find(err, 'WRONGTYPE', 1, true) or string.find(err, 'not an integer', 1, true)
                or string.find(err, 'overflow', 1, true)) then
            return token
        end
        token = 0
    end
    if token < 1e15 then -- there was no counter: it would be some 1.7e15 µs
        local time = redis.pcall('TIME')
        if time.err then
            return time
        end
        token = math.max(token + 1, time[1] * 1000000 + time[2])
        local set = redis.pcall('SET', KEYS[2], digits(token), 'PX', retention)
        return set.err and set or digits(token)
    elseif token >= 2^53 then -- Lua has rounded it
        return redis.pcall('GET', KEYS[2])
    end
    return digits(token)
end

-- Sees to it that the counter isn't below floor, a string. One that is ahead of the time is kept until the time has
-- caught up. Returns nil or an error.
local function raise(floor, retention)
    local stored = redis.pcall('GET', KEYS[2])
    -- Decimal digits compare like the numbers if there are equally many.
    if type(stored) == 'string' and tonumber(stored)
            and (#stored > #floor or #stored == #floor and stored >= floor) then
        return nil
    end
    local time = redis.pcall('TIME')
    if time.err then
        return time
    end
    local ahead = math.max((floor - time[1] * 1000000 - time[2]) / 1000, 0)
    local set = redis.pcall('SET', KEYS[2], floor, 'PX', digits(math.ceil(ahead) + retention))
    if set.err then
        return set
    end
    return nil
end

