package conformance

import (
	"strconv"
	"time"

	"github.com/leasekit/locker"
)

func frozenHolder(e *env) {
	name := e.name("frozen")
	w, path := e.shared()
	a, b := e.start("A", "", path), e.open()
	first := a.acquire(name)
	e.sleep(e.ttl / 2)
	a.freeze()
	frozen := time.Now()
	if e.b.ProcessBound {
		// Nobody else is granted the name while the process exists, but the lease has ended all the same.
		e.sleep(time.Until(frozen.Add(2 * e.ttl)))
		e.held(b, name)
		a.thaw()
		a.expect("lost")
		next := e.acquireWithin(e.b.TakeOver+e.patience, b, name)
		e.Greater(next.Token(), first)
		w.enter("B", next).write()
		e.judged(w)
		e.release(next)
		return
	}
	next := e.acquireWithin(e.b.TakeOver+e.patience, b, name)
	v := w.enter("B", next)
	v.write()
	e.Greater(next.Token(), first)
	before := e.entry(name)
	e.sleep(time.Until(frozen.Add(2 * e.ttl)))
	a.thaw()
	a.expect("lost")
	v.write()
	e.sleep(e.ttl / 2)
	v.write()
	e.alive(next)
	e.Equal(before.Value, e.entry(name).Value, "the entry of the next holder")
	a.order("release", "", 0)
	a.expect("lost")
	e.held(e.open(), name)
	v.leave()
	e.release(next)
	e.judged(w)
}

func killedHolder(e *env) {
	name := e.name("killed")
	w, path := e.shared()
	a, b := e.start("A", "", path), e.open()
	first := a.acquire(name)
	e.held(b, name)
	a.kill()
	at := time.Now()
	next := e.acquireWithin(e.b.TakeOver+e.patience, b, name)
	if took := time.Since(at); took > e.b.TakeOver+max(2*e.ttl, 3*time.Second) {
		e.Errorf("it took %v, and %v is documented", took, e.b.TakeOver)
	}
	e.Greater(next.Token(), first)
	w.enter("B", next).write()
	e.judged(w)
	e.release(next)
}

func takeOverFromKilled(e *env) {
	name := e.name("killed")
	a, b := e.start("A", "", ""), e.open()
	a.acquire(name)
	next := e.wait(b, name)
	e.settle()
	next.still()
	a.kill()
	at := time.Now()
	l := next.granted(e.b.TakeOver + e.patience)
	if took := next.ended.Sub(at); took > e.b.TakeOver+max(2*e.ttl, 3*time.Second) {
		e.Errorf("it took %v, and %v is documented", took, e.b.TakeOver)
	}
	e.release(l)
}

func tokensRiseOverProcesses(e *env) {
	name := e.name("fence")
	w, path := e.shared()
	last := locker.Token(0)
	rises := func(t locker.Token) {
		if t <= last {
			e.fail("token %d was granted after token %d", t, last)
		}
		last = t
	}
	for range times(1, 10) {
		a, b := e.start("A"+strconv.Itoa(int(last)), "", path), e.start("B"+strconv.Itoa(int(last)), "", path)
		rises(a.acquire(name))
		a.release()
		rises(b.acquire(name))
		b.kill()
		rises(a.acquire(name))
		a.release()
		// Several at once.
		c := e.start("C"+strconv.Itoa(int(last)), "", path)
		rounds := times(5, 20)
		a.order("loop", name, rounds)
		c.order("loop", name, rounds)
		a.expect("looped")
		c.expect("looped")
		rises(a.acquire(name))
		a.release()
		a.kill()
		c.kill()
	}
	e.judged(w)
}

func sameLabelAfterCrash(e *env) {
	name := e.name("label")
	w, path := e.shared()
	a, b := e.start("A", "worker", path), e.start("B", "worker", path)
	a.acquire(name)
	b.order("try", name, 0)
	b.expect("refused")
	asked := time.Now()
	a.order("remaining", "", 0)
	left, err := strconv.ParseInt(a.expect("remaining")[0], 10, 64)
	e.NoError(err)
	a.kill()
	b.order("try", name, 0)
	// The entry outlives what the lease had left when it was asked, and longer if it was renewed since.
	select {
	case f := <-b.events:
		if f[0] == "held" && !e.b.ProcessBound && time.Since(asked) < time.Duration(left) {
			e.fail("the lock of a process that was killed was granted %v before its lease was over", time.Duration(left)-time.Since(asked))
		}
		if f[0] == "held" {
			b.release()
		}
	case <-time.After(e.patience):
		e.fail("no answer to TryAcquire")
	}
	b.acquire(name)
	b.release()
	e.judged(w)
}
