-- Removes a lock's key if it is the caller's, and hints at it.
--
-- KEYS  1 the lock's key
-- ARGV  1 the ID and a space  2 the number of the newest attempt that is given up, '' for whatever attempt it is
--       3 the channel of hints, or ''
-- Returns 1 if the key was removed, 0 if it is gone or somebody else's.
local lock = redis.pcall('GET', KEYS[1])
if type(lock) == 'table' then
    if string.find(lock.err, 'WRONGTYPE', 1, true) then
        return 0 -- somebody has put something else there
    end
    return lock
end
if not lock or string.sub(lock, 1, 33) ~= ARGV[1]
        or ARGV[2] ~= '' and (tonumber(string.match(lock, '^%d+', 34)) or 0) > tonumber(ARGV[2]) then
    return 0
end
redis.call('DEL', KEYS[1])
if ARGV[3] ~= '' then
    redis.pcall('PUBLISH', ARGV[3], ARGV[1]) -- its failure must not undo the answer: waiters look from time to time anyway
end
return 1
