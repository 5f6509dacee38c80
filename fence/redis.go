package fence

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/leasekit/locker"
)

// RedisGuard is Lua to put in front of the write in the same script, which makes the two one atomic step. It takes the
// fence's key as the last of KEYS and the token as the last of ARGV:
//
//	script := redis.NewScript(fence.RedisGuard + `return redis.call('SET', KEYS[1], ARGV[1])`)
//	err := script.Run(ctx, client, []string{"report", "report:fence"}, text, uint64(lease.Token())).Err()
//	err = fence.RedisError("nightly", lease.Token(), err)
//
// The fence's key is the guard's memory: give it no TTL, and keep it where nothing is evicted and where it can't be lost
// without the data that it guards, in the same slot of a cluster. Scripts are atomic but aren't rolled back: let the write
// not fail, or put what can fail before it.
const RedisGuard = `do
  local function lower(a, b) return #a < #b or #a == #b and a < b end
  local token = ARGV[#ARGV] or ''
  if not string.match(token, '^[1-9]%d*$') or lower('9223372036854775807', token) then
    return redis.error_reply('NOTOKEN fence: no valid token')
  end
  local seen = redis.call('GET', KEYS[#KEYS])
  if seen and not string.match(seen, '^[1-9]%d*$') then
    return redis.error_reply('NOFENCE fence: the key holds something else')
  end
  if seen and lower(token, seen) then
    return redis.error_reply('STALE ' .. seen)
  end
  redis.call('SET', KEYS[#KEYS], token)
end
`

// RedisError turns the error replies of RedisGuard into errors that match ErrStale, ErrNoToken and ErrSetup; it returns
// every other error, and nil, as it is.
func RedisError(name string, token locker.Token, err error) error {
	if err == nil {
		return nil
	}
	switch code, rest, _ := strings.Cut(err.Error(), " "); code {
	case "STALE":
		number, _, _ := strings.Cut(rest, " ")
		seen, _ := strconv.ParseUint(number, 10, 63)
		return &StaleError{name, locker.Token(seen), token}
	case "NOTOKEN":
		return fmt.Errorf("%w: %d", ErrNoToken, token)
	case "NOFENCE":
		return fmt.Errorf("%w: the fence's key of %q holds something that isn't a token", ErrSetup, name)
	}
	return err
}
