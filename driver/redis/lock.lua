-- Takes a lock, or answers its holder once more.
--
-- KEYS  1 the lock's key  2 the counter of its tokens
-- ARGV  1 value, which begins with the ID and a space  2 TTL in ms  3 how long a new counter is kept, in ms
-- Returns the token if the lock was free, {1, token, value} if the caller had it already, {0, ms left or -1} if somebody
-- else has it, {-1, error} if the key can't be set.

-- What has no TTL yet, or was set before the failure, must not stay.
local function fail(err)
    redis.call('DEL', KEYS[1])
    return err
end

-- A new counter begins with the time, which is more than any token before.
local function restart(above)
    local time = redis.pcall('TIME')
    if time.err then
        return time
    end
    local token = math.max(above + 1, time[1] * 1000000 + time[2])
    -- Lua would write a number of this size with an exponent.
    local set = redis.pcall('SET', KEYS[2], string.format('%.0f', token), 'PX', ARGV[3])
    return set.err and set or token
end

local set = redis.pcall('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
if set and set.ok then
    local token = redis.pcall('INCR', KEYS[2])
    if type(token) == 'table' then
        local err = token.err
        if not (string.find(err, 'WRONGTYPE', 1, true) or string.find(err, 'not an integer', 1, true)
                or string.find(err, 'overflow', 1, true)) then
            return fail(token)
        end
        token = 0
    end
    if token < 1e15 then -- there was no counter: it would be some 1.7e15 µs
        token = restart(token)
    elseif token >= 2^53 then -- Lua has rounded it
        token = redis.pcall('GET', KEYS[2])
    end
    if type(token) == 'table' then
        return fail(token)
    end
    return token
end

if set and not string.find(set.err, 'OOM', 1, true) then
    -- Not as an error: after READONLY the client library would connect anew for each attempt.
    return {-1, set.err}
end
local lock = redis.pcall('GET', KEYS[1])
if type(lock) == 'table' then
    return lock -- the error as the server words it; WRONGTYPE is a foreign key
elseif not lock then
    return set -- without memory to lock, one can still see who has done so before
end
if string.sub(lock, 1, 33) ~= string.sub(ARGV[1], 1, 33) then
    return {0, redis.call('PTTL', KEYS[1])}
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local token = redis.pcall('GET', KEYS[2])
if type(token) ~= 'string' or not tonumber(token) then
    token = restart(0) -- lost meanwhile
    if type(token) == 'table' then
        return token
    end
    token = string.format('%.0f', token)
end
return {1, token, lock}
