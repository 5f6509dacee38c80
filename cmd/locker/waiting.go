package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/leasekit/locker/driver"
)

const (
	waitingAfter = 500 * time.Millisecond // most waits are over before
	waitingEvery = time.Second            // one look at the lock, by one process that somebody watches
)

// waitingLine tells the person at a terminal what is waited for, on one line that is kept up to date and wiped away in the
// end.
type waitingLine struct {
	out    io.Writer
	width  func() int // of the terminal; 0 if the line isn't to be seen now
	name   string
	rawURL string
	shown  int // characters on the line
}

// show keeps the line until ctx ends. It looks at the lock over a connection of its own, as locker inspect does.
func (w *waitingLine) show(ctx context.Context) {
	defer w.print("")
	began := time.Now()
	t := time.NewTimer(waitingAfter)
	defer t.Stop()
	var b *backend
	defer func() {
		if b != nil {
			go b.Close() // the command doesn't wait for it
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		t.Reset(waitingEvery)
		var e driver.Entry
		look, stop := context.WithTimeout(ctx, lookBound)
		var err error
		if b == nil {
			b, err = connect(look, w.rawURL)
		}
		if err == nil {
			if i, problem := b.inspector(); problem == nil {
				e, err = i.Inspect(look, w.name)
			}
		} else {
			b = nil
		}
		stop()
		if ctx.Err() == nil {
			w.print(w.text(e, err, time.Since(began)))
		}
	}
}

func (w *waitingLine) text(e driver.Entry, err error, waited time.Duration) string {
	text := fmt.Sprintf("locker: waiting for %q", w.name)
	switch {
	case err != nil:
		text += ", which can't be asked about"
	case e.Held && e.Owner != "" && !e.Since.IsZero():
		text += fmt.Sprintf(", held by %s for %s", readable(e.Owner), short(time.Since(e.Since).Truncate(time.Second)))
	case e.Held && e.Owner != "":
		text += ", held by " + readable(e.Owner)
	case e.Held:
		text += ", held by somebody else"
	}
	if e.Waiters > 1 {
		text += fmt.Sprintf(", %d waiting", e.Waiters)
	}
	return text + fmt.Sprintf(" (%s)", waited.Truncate(time.Second))
}

// print replaces the line. It never wraps, since then it couldn't be wiped away.
func (w *waitingLine) print(text string) {
	width := w.width()
	if width == 0 && w.shown == 0 {
		return
	}
	if limit := max(width-1, 0); utf8.RuneCountInString(text) > limit {
		text = string([]rune(text)[:limit])
	}
	n := utf8.RuneCountInString(text)
	if n == 0 && w.shown == 0 {
		return
	}
	line := "\r" + text + strings.Repeat(" ", max(w.shown-n, 0))
	if n == 0 {
		line += "\r"
	}
	io.WriteString(w.out, line)
	w.shown = n
}
