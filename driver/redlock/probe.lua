-- Tries every command of the other scripts without changing anything.
--
-- KEYS  1 a key that doesn't exist, with a companion's form
-- ARGV  1 the channel of hints
-- Returns {} if all is well, else {command, error}.
local commands = {
    {'GET', KEYS[1]},
    {'PTTL', KEYS[1]},
    {'TIME'},
    {'SET', KEYS[1], '', 'XX', 'PX', 1},
    {'PEXPIRE', KEYS[1], 1},
    {'DEL', KEYS[1]},
    {'INCR', KEYS[1]}, -- after and before a DEL, so that nothing is left
    {'DEL', KEYS[1]},
    {'PUBLISH', ARGV[1], ''},
}
for _, command in ipairs(commands) do
    local reply = redis.pcall(unpack(command))
    if type(reply) == 'table' and reply.err then
        return {command[1], reply.err}
    end
end
return {}
