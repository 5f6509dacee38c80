package conformance

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/leasekit/locker"
)

var errorCases = []testCase{
	{name: "WAIT-20", rule: "Held, timed out while held, unavailable and lost are told apart by sentinels, and each error says which operation on which name failed.", run: errorsToldApart},
	{name: "ERRORS-1", rule: "A name that isn't valid UTF-8 of 1 to 512 bytes is refused with ErrInvalidName, which matches ErrConfig, and nothing is sent.", run: invalidNames},
	{name: "ERRORS-2", rule: "A wait on an unavailable backend that runs out matches ErrUnavailable and the context's error, and not ErrHeld.", run: timedOutWhileAway},
}

func errorsToldApart(e *env) {
	name := e.name("errors")
	a, b := e.open(), e.open()
	l := e.acquire(a, name)

	got, err := b.TryAcquire(e.ctx, name)
	e.refused(got, err, locker.ErrHeld)
	e.False(isTimeout(err), "%v", err)
	e.NotErrorIs(err, locker.ErrUnavailable)
	e.says(err, "try", name)

	err = e.heldFor(e.ttl/4+50*time.Millisecond, b, name)
	e.NotErrorIs(err, locker.ErrUnavailable)
	e.says(err, "acquire", name)

	_, err = b.Acquire(e.ctx, name, locker.WithMaxWait(0))
	e.ErrorIs(err, locker.ErrHeld)
	e.False(isTimeout(err), "%v", err)

	a.vanish()
	e.lost(l, e.patience)
	err = l.Release(e.ctx)
	e.ErrorIs(err, locker.ErrLost)
	e.NotErrorIs(err, locker.ErrHeld)
	e.says(err, "release", name)

	b.end()
	got, err = b.Acquire(e.ctx, name)
	e.refused(got, err, locker.ErrClosed)
	got, err = b.TryAcquire(e.ctx, name)
	e.refused(got, err, locker.ErrClosed)
}

// says sees that an error tells what it is about.
func (e *env) says(err error, op, name string) {
	var le *locker.Error
	if !errors.As(err, &le) {
		e.fail("%v (%T) isn't a *locker.Error", err, err)
	}
	e.Equal(op, le.Op)
	e.Equal(name, le.Name)
	e.NotEmpty(le.Backend)
	e.Contains(err.Error(), op)
	e.Contains(err.Error(), name)
}

func invalidNames(e *env) {
	c := e.open()
	for _, name := range []string{"", "\xff", "a\xc3", strings.Repeat("x", 513), strings.Repeat("ü", 256) + "x"} {
		got, err := c.Acquire(e.ctx, name)
		e.refused(got, err, locker.ErrInvalidName, locker.ErrConfig)
		got, err = c.TryAcquire(e.ctx, name)
		e.refused(got, err, locker.ErrInvalidName, locker.ErrConfig)
	}
	for _, name := range []string{e.tag + strings.Repeat("x", 512-len(e.tag)), e.tag + "1" + strings.Repeat("ü", (511-len(e.tag))/2)} {
		e.free(c, name)
	}
}

func timedOutWhileAway(e *env) {
	name := e.name("away")
	c := e.open()
	e.free(c, name)
	c.away()
	w := e.waitFor(e.ttl/2, c, name)
	err := w.refused(e.patience, locker.ErrUnavailable, context.DeadlineExceeded)
	e.NotErrorIs(err, locker.ErrHeld)
	e.GreaterOrEqual(w.ended.Sub(w.began), e.ttl/2, "transient errors are retried until the context ends")
	silent := e.open()
	e.free(silent, name)
	silent.vanish()
	w = e.waitFor(e.ttl/2, silent, name)
	err = w.refused(e.patience, locker.ErrUnavailable, context.DeadlineExceeded)
	e.NotErrorIs(err, locker.ErrHeld)
}
