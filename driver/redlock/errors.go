package redlock

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/driver"
)

var errClosed = errors.New("redlock: connection closed")

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
	{"MOVED ", driver.ErrConfig}, // the client for clusters follows these
}

// explain gives an error of the client library the meaning that package driver defines. what says what was tried.
func (n *node) explain(what string, err error) error {
	if err == nil {
		return nil
	}
	if driver.IsAnswer(err) {
		return fmt.Errorf("%w (%s: %s)", err, n.name, what)
	}
	if answer := answerOf(err); answer != nil {
		return fmt.Errorf("%w: %s: %s: %w", answer, n.name, what, err)
	}
	return fmt.Errorf("%s: %s: %w", n.name, what, err)
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
	if _, ok := errors.AsType[notSent](err); ok {
		return false
	}
	return err != nil && !isReply(err)
}

// refusal is the error that a server gave to a command inside a script.
type refusal struct{ command, text string }

func (r refusal) Error() string { return r.text + " (" + r.command + ")" }
func (refusal) RedisError()     {}

// aboutName reports whether a right is missing that may depend on the lock's name: ACL rules list keys and channels.
func aboutName(err error) bool {
	return errors.Is(err, driver.ErrDenied) &&
		(strings.Contains(err.Error(), "of the keys") || strings.Contains(err.Error(), "of the channels") ||
			strings.Contains(err.Error(), "a key") || strings.Contains(err.Error(), "a channel"))
}

// undecided makes one error of several that nodes gave, when none of them decides anything. It matches no answer.
func undecided(what string, errs []error) error {
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	if len(texts) == 0 {
		return fmt.Errorf("redlock: %s", what)
	}
	return fmt.Errorf("redlock: %s: %s", what, strings.Join(texts, "; "))
}
