-- Takes a lock, or answers its holder once more.
--
-- KEYS  1 the lock's key  2 its token's key
-- ARGV  1 value, which begins with the ID and a space  2 TTL in ms  3 retention of the token in ms
-- Returns {1, token, value} if the caller holds the lock now, {0, ms left or -1} if somebody else does.
--
-- Reads come before writes, and the token before the lock: what is missing in rights fails before anything is left.
local lock = redis.pcall('GET', KEYS[1])
if type(lock) == 'table' then
    return lock -- the error as the server words it; WRONGTYPE is a foreign key
end
local id = string.sub(ARGV[1], 1, 33)
if lock and string.sub(lock, 1, 33) ~= id then
    return {0, redis.call('PTTL', KEYS[1])}
end
local stored = redis.pcall('GET', KEYS[2])
local token = type(stored) == 'string' and tonumber(stored)
if not lock or not token then
    local time = redis.call('TIME')
    local now = time[1] * 1000000 + time[2]
    token = math.max((token or 0) + 1, now)
    -- A clock that was set back leaves the token ahead of the time: it is kept until the time has caught up.
    local keep = math.ceil((token - now) / 1000) + ARGV[3]
    -- Lua would write a number of this size with an exponent.
    redis.call('SET', KEYS[2], string.format('%.0f', token), 'PX', string.format('%.0f', keep))
end
if lock then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
else
    lock = ARGV[1]
    redis.call('SET', KEYS[1], lock, 'PX', ARGV[2])
end
return {1, token, lock}
