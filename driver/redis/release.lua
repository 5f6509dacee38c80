-- Removes a lock's key if it is the caller's, and hints at it.
--
-- KEYS  1 the lock's key
-- ARGV  1 the value, or the ID and a space where the value isn't known  2 the channel of hints
-- Returns 1 if the key was removed, 0 if it is gone or somebody else's.
local lock = redis.pcall('GET', KEYS[1])
if type(lock) == 'table' then
    if string.find(lock.err, 'WRONGTYPE', 1, true) then
        return 0 -- somebody has put something else there
    end
    return lock
end
if not lock or (lock ~= ARGV[1] and not (#ARGV[1] == 33 and string.sub(lock, 1, 33) == ARGV[1])) then
    return 0
end
redis.call('DEL', KEYS[1])
redis.pcall('PUBLISH', ARGV[2], '') -- its failure must not undo the answer: waiters look from time to time anyway
return 1
