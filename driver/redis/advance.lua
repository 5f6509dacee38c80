-- Raises a name's counter of tokens to a floor, for the lock's holder.
--
-- KEYS  1 the lock's key  2 the counter
-- ARGV  1 the lock's value  2 the floor  3 how long a counter is kept, in ms
-- Returns 1, or 0 if the lock is gone or somebody else's.
local lock = redis.pcall('GET', KEYS[1])
if type(lock) == 'table' and not string.find(lock.err, 'WRONGTYPE', 1, true) then
    return lock
end
if lock ~= ARGV[1] then
    return 0
end
local floor, stored = ARGV[2], redis.pcall('GET', KEYS[2])
-- Lua's numbers aren't exact at this size; decimal digits compare like the numbers if there are equally many.
if type(stored) == 'string' and tonumber(stored)
        and (#stored > #floor or #stored == #floor and stored >= floor) then
    return 1
end
local time = redis.call('TIME')
local ahead = math.max((floor - time[1] * 1000000 - time[2]) / 1000, 0)
-- A floor that is ahead of the time is kept until the time has caught up.
redis.call('SET', KEYS[2], floor, 'PX', string.format('%.0f', math.ceil(ahead) + ARGV[3]))
return 1
