package redlock

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"strings"

	"github.com/redis/go-redis/v9"
)

//go:embed tokens.lua
var tokensSource string

//go:embed take.lua
var takeSource string

//go:embed raise.lua
var raiseSource string

//go:embed release.lua
var releaseSource string

//go:embed renew.lua
var renewSource string

//go:embed probe.lua
var probeSource string

var (
	takeScript    = newScript(tokensSource + takeSource)
	raiseScript   = newScript(tokensSource + raiseSource)
	releaseScript = newScript(releaseSource)
	renewScript   = newScript(renewSource)
	probeScript   = newScript(probeSource)
)

// script is a Lua script, which the server knows by the hash of its source once it has seen it.
type script struct{ source, hash string }

func newScript(source string) script {
	sum := sha1.Sum([]byte(source))
	return script{source: source, hash: hex.EncodeToString(sum[:])}
}

// command is a call of a script: EVALSHA, or EVAL with the source. The client library never sends it twice by itself: a
// second release would answer that there was nothing to release.
type command struct{ *redis.Cmd }

// NoRetry tells the client library not to send the command again.
func (command) NoRetry() bool { return true }

func (s script) command(ctx context.Context, eval bool, keys []string, args ...any) command {
	all := make([]any, 3, 3+len(keys)+len(args))
	all[0], all[1], all[2] = "EVALSHA", s.hash, len(keys)
	if eval {
		all[0], all[1] = "EVAL", s.source
	}
	for _, key := range keys {
		all = append(all, key)
	}
	return command{redis.NewCmd(ctx, append(all, args...)...)}
}

// run calls the script, and sends the source along if the server doesn't know it (any more).
func (s script) run(ctx context.Context, c *redis.Client, keys []string, args ...any) (any, error) {
	for _, eval := range []bool{false, true} {
		cmd := s.command(ctx, eval, keys, args...)
		err := c.Process(ctx, cmd)
		if err == nil || eval || !isNoScript(err) {
			return cmd.Val(), err
		}
	}
	panic("unreachable")
}

// isNoScript reports whether the server doesn't know the script, so that nothing of it was run.
func isNoScript(err error) bool { return err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") }
