-- Raises a name's counter of tokens to a floor, for the lock's holder.
--
-- KEYS  1 the lock's key  2 the counter
-- ARGV  1 the ID and a space  2 the floor  3 how long a counter is kept, in ms
-- Returns 1, or 0 if the lock is gone or somebody else's.
local lock = redis.pcall('GET', KEYS[1])
if type(lock) == 'table' and not string.find(lock.err, 'WRONGTYPE', 1, true) then
    return lock
end
if type(lock) ~= 'string' or string.sub(lock, 1, 33) ~= ARGV[1] then
    return 0
end
return raise(ARGV[2], ARGV[3]) or 1
