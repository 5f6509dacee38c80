package locker

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/leasekit/locker/driver"
)

// The sentinels, to be tested with errors.Is. Several of them can match one error: a cause that ended a lease matches
// ErrLost beside what is more special, and a wait that ran out matches ErrHeld or ErrUnavailable beside the context's
// error. Test ErrLost before context.Canceled.
var (
	// ErrHeld says that somebody else holds the name. Wait, or skip the work.
	ErrHeld = driver.ErrHeld
	// ErrLost says that the lease has ended before it was released. Stop the work: somebody else may hold the name.
	ErrLost = errors.New("lease lost")
	// ErrMaxHold says that the lease has ended because it was held for the time that MaxHold or WithMaxHold allows. It
	// matches ErrLost too. Stop the work, and find out why it took so long.
	ErrMaxHold error = &loss{text: "held for the maximum time"}
	// ErrReleased is the cause of a lease's context after Release. No function returns it.
	ErrReleased = errors.New("lease released")
	// ErrClosed says that the Locker is closed. As the cause of a lease's end it matches ErrLost too.
	ErrClosed = errors.New("locker closed")
	// ErrConfig says that a URL, an option, a name or a TTL is wrong, that the backend's kind isn't the one required, or
	// that the server lacks what is asked for. Trying again doesn't help; somebody has to change it.
	ErrConfig = driver.ErrConfig
	// ErrInvalidName says that a name is empty, longer than 512 bytes, or not valid UTF-8. It matches ErrConfig.
	ErrInvalidName = driver.ErrInvalidName
	// ErrConflict says that something which isn't a lock stands where the lock's entry should be. It was left as it is.
	// Somebody has to remove it, or choose another name or prefix.
	ErrConflict = driver.ErrConflict
	// ErrDenied says that the backend refuses the credentials, or a right is missing; the text says which. Trying again
	// doesn't help.
	ErrDenied = driver.ErrDenied
	// ErrUnavailable says that the backend couldn't be asked, or didn't answer: whether somebody holds the name isn't
	// known. Try again later.
	ErrUnavailable = errors.New("backend unavailable")
)

// Error is the error that functions and methods of this package return. Err holds a sentinel and, where there is one,
// the error of the client library, both within reach of errors.Is and errors.As.
type Error struct {
	Op      string // "open", "acquire", "try", "release", "hold", "do", "close"
	Backend string // "redis"; "" if it isn't known
	Name    string // the lock's name; "" if the error concerns none
	Err     error
}

// Error returns a text such as
//
//	locker: acquire "nightly" (redis): held by another
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("locker: ")
	b.WriteString(e.Op)
	if e.Name != "" {
		fmt.Fprintf(&b, " %q", e.Name)
	}
	if e.Backend != "" {
		fmt.Fprintf(&b, " (%s)", e.Backend)
	}
	b.WriteString(": ")
	b.WriteString(e.Err.Error())
	return b.String()
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// loss is a reason for the end of a lease that matches ErrLost beside itself.
type loss struct {
	text  string
	cause error // may be nil
}

func (l *loss) Error() string        { return ErrLost.Error() + ": " + l.text }
func (l *loss) Is(target error) bool { return target == ErrLost }
func (l *loss) Unwrap() error        { return l.cause }

// lost says how a lease was lost.
func lost(text string, cause error) error {
	if cause != nil {
		text += ": " + cause.Error()
		cause = own(cause)
	}
	return &loss{text: text, cause: cause}
}

// errClosedLease is the cause of a lease that Close has ended.
var errClosedLease error = &loss{text: ErrClosed.Error(), cause: ErrClosed}

// unavailable wraps an unknown outcome.
func unavailable(err error) error {
	if err == nil {
		return ErrUnavailable
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, own(err))
}

// own hides from errors.Is that err stems from a context of the engine's own. A caller who tests for
// context.DeadlineExceeded asks about the caller's context.
func own(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return &internalError{err}
	}
	return err
}

// internalError is err without a match for context errors; all else in its chain is still found.
type internalError struct{ err error }

func (e *internalError) Error() string { return e.err.Error() }
func (e *internalError) Is(target error) bool {
	return target != context.Canceled && target != context.DeadlineExceeded && errors.Is(e.err, target)
}
func (e *internalError) As(target any) bool { return errors.As(e.err, target) }
