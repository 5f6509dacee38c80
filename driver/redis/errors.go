package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/driver"
)

var errClosed = errors.New("redis: connection closed")

// answers says which replies of a server are answers: somebody has to change something before it says anything else.
// The text is looked for anywhere, since some versions put what went wrong inside a script into a longer message.
// Every other reply, such as OOM, MISCONF, LOADING, READONLY, MASTERDOWN, CLUSTERDOWN, TRYAGAIN, BUSY and what a later
// version may add, is an unknown: it passes.
var answers = []struct {
	text   string
	answer error
}{
	{"WRONGTYPE", driver.ErrConflict},
	{"NOPERM", driver.ErrDenied},
	{"NOAUTH", driver.ErrDenied},
	{"WRONGPASS", driver.ErrDenied},
	{"ERR invalid password", driver.ErrDenied},
	{"ERR AUTH", driver.ErrDenied}, // a password for a server that has none
	{"ERR Client sent AUTH", driver.ErrDenied},
	{"The user executing the script can't", driver.ErrDenied}, // 6.2
	{"ACL failure in script", driver.ErrDenied},               // from 7.2 on
	{"unknown command", driver.ErrConfig},                     // switched off by rename-command
	{"Unknown Redis command", driver.ErrConfig},
	{"DB index is out of range", driver.ErrConfig},
	{"SELECT is not allowed in cluster mode", driver.ErrConfig},
	{"MOVED ", errClustered},
	{"CROSSSLOT", errClustered},
}

// errClustered is the answer of a cluster's node to a client for one server; one for clusters follows redirections.
var errClustered = fmt.Errorf("%w: the server belongs to a cluster, whose URL begins with redis+cluster:// or rediss+cluster://", driver.ErrConfig)

// explain gives an error of the client library the meaning that package driver defines. what says what was tried.
func explain(what string, err error) error {
	if err == nil {
		return nil
	}
	if driver.IsAnswer(err) {
		return err
	}
	if answer := answerOf(err); answer != nil {
		return fmt.Errorf("%w: %s: %w", answer, what, err)
	}
	return fmt.Errorf("redis: %s: %w", what, err)
}

func answerOf(err error) error {
	if !isReply(err) {
		return nil
	}
	text := err.Error()
	for _, a := range answers {
		if strings.Contains(text, a.text) {
			return a.answer
		}
	}
	return nil
}

// isReply reports whether err is what a server replied, so that its connection is in order.
func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

// wasSent reports whether a request that failed may have reached a server that carried it out.
func wasSent(err error) bool {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return false
	}
	return err != nil && !isReply(err)
}

// ended is the error of a call whose context ended before its reply was there.
func ended(ctx context.Context, err error) error {
	if err == nil {
		return ctx.Err()
	}
	return fmt.Errorf("%w (%w)", ctx.Err(), err)
}
