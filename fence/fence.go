// Package fence lets the resource refuse a holder that woke up late.
//
// A lease can end while its holder is paused right before a write; nothing in any lock can stop that write. What is
// written to can: it remembers the greatest fencing token that it has seen for a name and refuses lower ones, in the same
// atomic step as the write. This package has that step for SQL databases ([SQL]) and for Redis ([RedisGuard]), and carries
// name and token to the service that has to check them ([SetHeader], [FromHeader]).
//
// All guards keep one contract:
//
//   - An equal token passes, so that a holder can write more than once. A greater one passes and is remembered, a lower one
//     is refused with an error that matches ErrStale and carries both.
//   - Zero, negative, overflowing and missing tokens are refused with ErrNoToken. Whatever can't be decided is an error.
//   - Names are independent of each other.
//   - The token is remembered if and only if the write is committed.
//
// There is no helper that checks first and writes later: between the two lies the pause that all of this is about.
package fence

import (
	"errors"
	"fmt"
	"math"

	"github.com/leasekit/locker"
)

// The sentinels, to be tested with errors.Is.
var (
	// ErrStale says that a greater token of the name has been seen: the lease has ended, and somebody else has begun to
	// write. Nothing was written. Give up the work; don't try again with the same lease. The error is a *StaleError.
	ErrStale = errors.New("fence: stale token")
	// ErrNoToken says that there is no token, or none that a lease can have. Nothing was written.
	ErrNoToken = errors.New("fence: no valid token")
	// ErrSetup says that a guard can't work: the dialect, the table's name or its columns are wrong, or the value under a
	// fence's key is none. Nothing was written.
	ErrSetup = errors.New("fence: setup")
)

// StaleError is the error of a token that is lower than the greatest one seen. It matches ErrStale.
type StaleError struct {
	Name  string
	Seen  locker.Token // 0 if it couldn't be read
	Given locker.Token
}

// Error names both tokens.
func (e *StaleError) Error() string {
	return fmt.Sprintf("fence: stale token %d for %q: %d has been seen", e.Given, e.Name, e.Seen)
}

// Is reports whether target is ErrStale.
func (e *StaleError) Is(target error) bool { return target == ErrStale }

// check returns an error matching ErrNoToken unless token can be a lease's.
func check(token locker.Token) error {
	if token == 0 || token > math.MaxInt64 {
		return fmt.Errorf("%w: %d", ErrNoToken, token)
	}
	return nil
}
