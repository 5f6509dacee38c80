package driver

import (
	"errors"
	"time"
)

// The answers of a backend. Package locker exports those that its users meet under the same names, and they are the same
// values.
var (
	// ErrHeld says that somebody else holds the name.
	ErrHeld = errors.New("held by another")
	// ErrNotHeld says that an entry is gone or is somebody else's.
	ErrNotHeld = errors.New("not held")
	// ErrConfig says that a URL, an option, a name or a TTL is wrong, or that the server lacks what they ask for.
	ErrConfig = errors.New("invalid configuration")
	// ErrInvalidName says that a name isn't valid. It matches ErrConfig.
	ErrInvalidName error = invalidName{}
	// ErrConflict says that something which isn't a lock stands where the entry should be.
	ErrConflict = errors.New("a foreign entry stands where the lock should")
	// ErrDenied says that the backend doesn't allow what was asked, for lack of a right or because of wrong credentials.
	ErrDenied = errors.New("not authorised")
)

type invalidName struct{}

func (invalidName) Error() string        { return "invalid name" }
func (invalidName) Is(target error) bool { return target == ErrConfig }

// Held returns an error that matches ErrHeld and carries the holder's remaining TTL, which bounds the engine's pause
// before it looks again. A remaining time <= 0 means that it isn't known.
func Held(remaining time.Duration) error {
	if remaining <= 0 {
		return ErrHeld
	}
	return &heldError{remaining}
}

// HeldFor returns the remaining TTL that an error made by Held carries, and 0 if it carries none.
func HeldFor(err error) time.Duration {
	if h, ok := errors.AsType[*heldError](err); ok {
		return h.remaining
	}
	return 0
}

type heldError struct{ remaining time.Duration }

func (e *heldError) Error() string {
	return ErrHeld.Error() + " for up to " + e.remaining.Round(time.Millisecond).String()
}
func (e *heldError) Unwrap() error { return ErrHeld }

// IsAnswer reports whether err says what the backend decided, so that asking again gives no other result by itself.
// Every other error, nil apart, is an unknown.
func IsAnswer(err error) bool {
	return errors.Is(err, ErrHeld) || errors.Is(err, ErrNotHeld) || IsPermanent(err)
}

// IsPermanent reports whether err is an answer that somebody has to change something about: ErrConfig, ErrConflict or
// ErrDenied.
func IsPermanent(err error) bool {
	return errors.Is(err, ErrConfig) || errors.Is(err, ErrConflict) || errors.Is(err, ErrDenied)
}
