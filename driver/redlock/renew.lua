-- Sets the TTL of each key that still has its holder's ID.
--
-- KEYS  the locks' keys
-- ARGV  1 TTL in ms  2... the ID and a space of each key
-- Returns for each key 1 if its TTL was set, 0 if it is gone or somebody else's.
local renewed = {}
for i, key in ipairs(KEYS) do
    local lock = redis.pcall('GET', key)
    if type(lock) == 'table' and not string.find(lock.err, 'WRONGTYPE', 1, true) then
        return lock
    end
    if type(lock) == 'string' and string.sub(lock, 1, 33) == ARGV[i + 1] then
        renewed[i] = redis.call('PEXPIRE', key, ARGV[1])
    else
        renewed[i] = 0
    end
end
return renewed
