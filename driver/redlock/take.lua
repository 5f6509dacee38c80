-- Takes a lock at one server, or answers its holder once more.
--
-- KEYS  1 the lock's key  2 the counter of its tokens
-- ARGV  1 value: the ID, a space, a number that rises with each attempt, a space, the owner  2 TTL in ms
--       3 how long a new counter is kept, in ms  4 the token of a lock that was granted before, '' for a new one
-- Returns {1, token} if the lock was free, {2, token} if the caller had it already, {0, ms left or -1, value} if somebody
-- else has it, {-1, error} if the key can't be set.

local function attempt(value)
    return tonumber(string.match(value, '^%d+', 34)) or 0
end

local set = redis.pcall('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
if set and set.ok then
    local token
    if ARGV[4] == '' then
        token = mint(ARGV[3])
    else
        token = raise(ARGV[4], ARGV[3]) or ARGV[4]
    end
    if type(token) == 'table' then
        redis.call('DEL', KEYS[1]) -- a lock without a token must not stay
        return {-1, token.err}
    end
    return {1, token}
end
if set and not string.find(set.err, 'OOM', 1, true) then
    -- Not as an error: after READONLY the client library would connect anew for each attempt.
    return {-1, set.err}
end
local lock = redis.pcall('GET', KEYS[1])
if type(lock) == 'table' then
    return lock -- the error as the server words it; WRONGTYPE is a foreign key
elseif not lock then
    return {-1, set and set.err or 'ERR the key is gone'} -- without memory to lock, one can still see who has done so before
end
if string.sub(lock, 1, 33) ~= string.sub(ARGV[1], 1, 33) then
    return {0, redis.call('PTTL', KEYS[1]), lock}
end
if ARGV[4] ~= '' then
    return {2, ARGV[4]} -- only renewals set the TTL of a lock that was granted
end
-- The value becomes that of the newest attempt, so that a late undo of an earlier one doesn't meet it.
if attempt(lock) < attempt(ARGV[1]) then
    local again = redis.pcall('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
    if again.err then
        return {-1, again.err}
    end
else
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
local token = redis.pcall('GET', KEYS[2])
if type(token) ~= 'string' or not tonumber(token) then
    token = mint(ARGV[3]) -- lost meanwhile
    if type(token) == 'table' then
        return {-1, token.err}
    end
end
return {2, token}
