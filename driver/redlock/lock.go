package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/driver"
)

// taken is what a node says to an attempt to take a lock.
type taken struct {
	token  uint64        // the node's; 0 if somebody else holds the key there
	again  bool          // the key was this ID's already
	left   time.Duration // of the other's key; 0: not known
	holder string        // the value of the other's key
}

// TryLock asks all nodes at once for the key and counts as soon as a majority has decided. If that minted different
// tokens, a second round writes the largest one back.
func (c *conn) TryLock(ctx context.Context, req driver.Request) (driver.Hold, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	h := c.newHold(req)
	h.sent = c.cfg.Now()
	replies := ask(c, attempts, c.limit, c.nodes, func(ctx context.Context, n *node, client *redis.Client) (taken, error) {
		if err := c.verify(ctx, n, client); err != nil {
			return taken{}, err
		}
		return h.take(ctx, n, client, 0)
	})
	var v votes
	raised := make(chan reply[bool], len(c.nodes)) // replies to the write-back
	writing := false
	waiting := len(c.nodes)
	var stragglers <-chan time.Time
	for {
		select {
		case r := <-replies:
			waiting--
			v.add(r)
			if writing && r.err == nil && r.value.token != 0 {
				h.raise(r.node, v.token, raised)
			}
		case r := <-raised:
			v.raised(r)
		case <-stragglers:
			waiting = 0
		case <-ctx.Done():
			h.giveUp()
			return nil, ctx.Err()
		}
		switch {
		case len(v.unfit) > 0:
			h.giveUp()
			return nil, errors.Join(v.unfit...)
		case writing && v.written >= c.quorum:
			h.keep(v.token)
			return h, nil
		case writing && v.lost > len(c.nodes)-c.quorum, waiting == 0 && writing && v.written+v.lost == len(v.granted):
			h.giveUp()
			return nil, undecided("the token could not be written to a majority", v.errs)
		case !writing && len(v.granted) >= c.quorum:
			if v.agreed(c.quorum) {
				h.keep(v.token)
				return h, nil
			}
			if v.again() && waiting > 0 {
				break
			}
			writing = true
			for _, g := range v.granted {
				h.raise(g.node, v.token, raised)
			}
		case !writing && (len(v.granted)+waiting < c.quorum || waiting == 0):
			h.giveUp()
			return nil, v.refusal(c, key(h), waiting)
		}
		if v.heard >= c.quorum && stragglers == nil {
			timer := time.NewTimer(max(4*c.cfg.Now().Sub(h.sent), straggle))
			defer timer.Stop()
			stragglers = timer.C
		}
	}
}

func key(h *hold) string { return h.key }

// votes counts the replies to an attempt.
type votes struct {
	granted []reply[taken]
	held    []taken
	answers []error // ErrConflict and ErrDenied
	unfit   []error // ErrConfig
	errs    []error // all errors, answers or not
	heard   int     // servers that have spoken, and not only the network

	token         uint64 // the largest among the majority
	written, lost int    // of the write-back
}

func (v *votes) add(r reply[taken]) {
	if r.heard() || driver.IsPermanent(r.err) {
		v.heard++
	}
	switch {
	case r.err == nil && r.value.token != 0:
		v.granted = append(v.granted, r)
	case r.err == nil:
		v.held = append(v.held, r.value)
	case errors.Is(r.err, driver.ErrConfig):
		v.unfit = append(v.unfit, r.err)
	case driver.IsPermanent(r.err):
		v.answers = append(v.answers, r.err)
		v.errs = append(v.errs, r.err)
	default:
		v.errs = append(v.errs, r.err)
	}
}

// agreed chooses the token, and reports whether a majority has it already: what a majority says is larger than the tokens
// of all earlier grants, whatever others say. Otherwise it is the largest one.
func (v *votes) agreed(quorum int) bool {
	count := make(map[uint64]int)
	v.token = 0
	for _, r := range v.granted {
		token := r.value.token
		if count[token]++; count[token] >= quorum {
			v.token = token
			return true
		}
		v.token = max(v.token, token)
	}
	return false
}

// again reports whether a node had the key before this attempt. Then an earlier one may have been granted, and its token
// is the one that a majority has.
func (v *votes) again() bool {
	return slices.ContainsFunc(v.granted, func(r reply[taken]) bool { return r.value.again })
}

func (v *votes) raised(r reply[bool]) {
	switch {
	case r.err != nil:
		v.errs = append(v.errs, r.err)
		v.lost++
	case r.value:
		v.written++
	default:
		v.lost++
	}
}

// refusal is the error of an attempt that didn't get a majority. silent nodes haven't answered (yet).
func (v *votes) refusal(c *conn, key string, silent int) error {
	silent += len(v.errs) - len(v.answers) // they may hold the key for somebody as well
	switch {
	case len(v.answers) > len(c.nodes)-c.quorum:
		return errors.Join(v.answers...)
	case v.someoneHolds(c.quorum, silent):
		return driver.Held(v.untilFree(c))
	case len(v.held) > 0:
		return undecided("nobody has a majority for "+key, v.errs)
	}
	return undecided("a majority of the nodes didn't grant "+key, v.errs)
}

// someoneHolds reports whether one and the same value may stand on a majority. Where nodes are silent, an entry counts
// for a holder's only if it isn't as young as that of one who is taking it right now.
func (v *votes) someoneHolds(quorum, silent int) bool {
	count := make(map[string]int)
	for _, t := range v.held {
		id := t.holder
		if len(id) > 33 {
			id = id[:33]
		}
		if count[id]++; count[id] >= quorum {
			return true
		}
		if _, since, _, ok := parseValue(t.holder); ok && time.Since(since).Abs() < contested {
			continue
		}
		if count[id]+silent >= quorum {
			return true
		}
	}
	return false
}

// contested is for how long an entry may be that of an attempt under way. It is compared with another machine's clock:
// nothing but the length of a pause depends on it.
const contested = time.Second / 2

// untilFree returns how long it takes at most until so many entries have expired that a majority is free.
func (v *votes) untilFree(c *conn) time.Duration {
	var left []time.Duration
	for _, t := range v.held {
		if t.left <= 0 {
			return 0
		}
		left = append(left, t.left)
	}
	slices.Sort(left)
	need := c.quorum - len(v.granted)
	if need < 1 || need > len(left) {
		return 0
	}
	return left[need-1]
}

// take runs the take script on a node, for a lock that was granted with a token or, if that is 0, for a new one. It must
// not be called after the hold has ended, and sees to it that what it may leave behind after that is removed.
func (h *hold) take(ctx context.Context, n *node, client *redis.Client, token uint64) (taken, error) {
	c := h.conn
	if !h.begin(n) {
		return taken{}, driver.ErrNotHeld
	}
	given := ""
	if token != 0 {
		given = strconv.FormatUint(token, 10)
	}
	got, err := takenOf(takeScript.run(ctx, client, []string{h.key, c.layout.counter(h.key)}, h.value, c.ttl.Milliseconds(), c.retention, given))
	h.end(n, got.token, err)
	return got, n.explain("lock "+h.key, err)
}

// takenOf reads the take script's reply.
func takenOf(v any, err error) (taken, error) {
	if err != nil {
		return taken{}, err
	}
	fields, _ := v.([]any)
	if len(fields) >= 2 {
		switch fields[0] {
		case int64(1), int64(2):
			if token := tokenOf(fields[1]); token != 0 {
				return taken{token: token, again: fields[0] == int64(2)}, nil
			}
		case int64(0):
			left, ok := fields[1].(int64)
			if holder, isString := fields[len(fields)-1].(string); ok && isString {
				return taken{left: max(time.Duration(left)*time.Millisecond, 0), holder: holder}, nil
			}
		case int64(-1):
			return taken{}, refusal{"SET", fmt.Sprint(fields[1])}
		}
	}
	return taken{}, fmt.Errorf("the take script was answered with %v", v)
}

// tokenOf reads a token, which is a string since Lua's numbers aren't exact above 2^53. It returns 0 if it is none.
func tokenOf(v any) uint64 {
	s, _ := v.(string)
	n, _ := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	return uint64(max(n, 0))
}

// raise writes the token to a node that still has the hold's key, and sends the outcome to raised.
func (h *hold) raise(n *node, token uint64, raised chan<- reply[bool]) {
	if !h.conn.begin() {
		raised <- reply[bool]{n, false, errClosed}
		return
	}
	go func() {
		defer h.conn.work.Done()
		ok, err := call(h.conn, n, attempts, h.conn.limit, func(ctx context.Context, n *node, client *redis.Client) (bool, error) {
			return h.raiseAt(ctx, n, client, token)
		})
		raised <- reply[bool]{n, ok, err}
	}()
}

// raiseAt runs the raise script on a node.
func (h *hold) raiseAt(ctx context.Context, n *node, client *redis.Client, floor uint64) (bool, error) {
	c := h.conn
	v, err := raiseScript.run(ctx, client, []string{h.key, c.layout.counter(h.key)}, h.id+" ", strconv.FormatUint(floor, 10), c.retention)
	return v == int64(1), n.explain("raise the token of "+h.key, err)
}
