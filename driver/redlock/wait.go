package redlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasekit/locker/driver"
)

// Watch subscribes on all nodes to the channel on which releases of the name are announced, and returns once a majority
// has confirmed: a release is announced on a majority too. A hint comes when a majority has announced the same release,
// since a look before that would find the lock held, or a moment after the first announcement.
func (c *conn) Watch(ctx context.Context, name string) (<-chan struct{}, func(), error) {
	w := &watcher{conn: c, channel: c.layout.channel(c.layout.key(name)), hints: make(chan struct{}, 1), ready: make(chan struct{})}
	for _, s := range c.hints {
		if err := s.add(w); err != nil {
			w.stop()
			return nil, nil, err
		}
	}
	select {
	case <-w.ready:
	case <-ctx.Done():
		w.stop()
		return nil, nil, ctx.Err()
	case <-c.closing.Done():
		w.stop()
		return nil, nil, errClosed
	}
	w.mu.Lock()
	err := w.err
	w.mu.Unlock()
	if err != nil {
		w.stop()
		return nil, nil, err
	}
	return w.hints, w.stop, nil
}

// watcher is one call of Watch.
type watcher struct {
	conn    *conn
	channel string
	hints   chan struct{}
	ready   chan struct{} // closed when enough nodes have confirmed, or can't any more

	mu        sync.Mutex
	confirmed int
	errs      []error
	err       error
	done      bool        // ready is closed
	release   string      // that was announced last
	announced int         // by how many nodes
	timer     *time.Timer // since the first of these; nil: none runs
	stopped   bool
}

// confirm notes that a node has subscribed, or why it couldn't at first; it is tried again later.
func (w *watcher) confirm(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.confirmed++
	} else {
		w.errs = append(w.errs, err)
	}
	switch {
	case w.done:
	case w.confirmed >= w.conn.quorum:
		w.done = true
		close(w.ready)
	case len(w.errs) > len(w.conn.nodes)-w.conn.quorum:
		w.done, w.err = true, undecided("subscribe to "+w.channel, w.errs)
		if driver.IsPermanent(errors.Join(w.errs...)) {
			w.err = errors.Join(w.errs...)
		}
		close(w.ready)
	}
}

// together is how long the announcements of one release by several nodes may be apart.
const together = 20 * time.Millisecond

// announce takes an announcement of a release by one node.
func (w *watcher) announce(release string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return
	}
	if release != w.release || release == "" {
		w.release, w.announced = release, 0
	}
	w.announced++
	switch {
	case w.announced == w.conn.quorum:
		w.hint()
	case w.timer == nil:
		w.timer = time.AfterFunc(together, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.timer = nil
			w.hint()
		})
	}
}

// hint needs the mutex.
func (w *watcher) hint() {
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
	if w.stopped {
		return
	}
	select {
	case w.hints <- struct{}{}:
	default:
	}
}

func (w *watcher) stop() {
	w.mu.Lock()
	w.stopped = true
	if w.timer != nil {
		w.timer.Stop()
	}
	w.mu.Unlock()
	for _, s := range w.conn.hints {
		s.remove(w)
	}
}

// subscriber has one subscription connection to a node for all watched names, as long as there are any and for a moment
// longer. When that breaks, or can't be made, it is made anew after a pause; what was announced meanwhile is lost, and
// the engine looks from time to time anyway.
type subscriber struct {
	conn *conn
	node *node

	mu      sync.Mutex
	closed  bool
	topics  map[string]*topic // by channel
	running bool
	wake    chan struct{} // tells the session that topics have changed
	end     func()        // closes the session's connection; nil: there is none
	idle    *time.Timer
}

// topic is a channel with those who watch it.
type topic struct {
	watchers  map[*watcher]bool // true: it was told that the node has subscribed, or couldn't
	confirmed bool              // by the present connection
}

// linger is how long a connection without subscriptions is kept: waits for busy names follow each other.
const linger = time.Second

func (s *subscriber) add(w *watcher) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	t := s.topics[w.channel]
	if t == nil {
		t = &topic{watchers: make(map[*watcher]bool)}
		s.topics[w.channel] = t
	}
	t.watchers[w] = t.confirmed
	if t.confirmed {
		w.confirm(nil)
	}
	if s.idle != nil {
		s.idle.Stop()
		s.idle = nil
	}
	if s.running {
		s.changed()
		return nil
	}
	if !s.conn.begin() {
		return errClosed
	}
	s.running = true
	go s.serve()
	return nil
}

func (s *subscriber) remove(w *watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics[w.channel]
	if t == nil {
		return
	}
	if delete(t.watchers, w); len(t.watchers) > 0 {
		return
	}
	delete(s.topics, w.channel)
	s.changed()
	if len(s.topics) == 0 && s.idle == nil && s.running && !s.closed {
		s.idle = time.AfterFunc(linger, s.expire)
	}
}

func (s *subscriber) changed() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// expire closes a connection that nobody needs.
func (s *subscriber) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.idle = nil; len(s.topics) == 0 && s.end != nil {
		s.end() // serve notices
	}
}

// serve connects and reads until nobody watches.
func (s *subscriber) serve() {
	defer s.conn.work.Done()
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		s.mu.Lock()
		if s.closed || len(s.topics) == 0 {
			s.running = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		began := time.Now()
		err := s.session()
		if time.Since(began) > time.Second {
			pause = 100 * time.Millisecond
		}
		if s.broke(err) {
			continue
		}
		select {
		case <-time.After(pause):
		case <-s.conn.closing.Done():
		}
	}
}

// session serves one connection until it breaks. Requests are written by a goroutine of their own, since a write may
// block, and whoever begins or ends to watch must not.
func (s *subscriber) session() error {
	p, end := s.node.subscription(s.conn.closing)
	done := make(chan struct{})
	var writer sync.WaitGroup
	defer writer.Wait()
	defer close(done)
	defer end()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return errClosed
	}
	s.end = end
	s.mu.Unlock()
	connected := make(chan error, 1)
	writer.Go(func() {
		applied := make(map[string]*topic)
		err := s.write(p, applied) // connects
		connected <- err
		for err == nil {
			select {
			case <-s.wake:
				err = s.write(p, applied)
			case <-done:
				return
			}
		}
		end()
	})
	if err := <-connected; err != nil {
		return err
	}
	for {
		msg, err := p.Receive(s.conn.closing)
		if err != nil {
			return err
		}
		switch msg := msg.(type) {
		case *redis.Subscription:
			if msg.Kind == "subscribe" {
				s.subscribed(msg.Channel)
			}
		case *redis.Message:
			s.announced(msg.Channel, msg.Payload)
		}
	}
}

// write asks for what has changed since it was called before.
func (s *subscriber) write(p *redis.PubSub, applied map[string]*topic) error {
	var begun, ended []string
	s.mu.Lock()
	for channel, t := range s.topics {
		if applied[channel] != t {
			applied[channel] = t
			begun = append(begun, channel)
		}
	}
	for channel := range applied {
		if s.topics[channel] == nil {
			delete(applied, channel)
			ended = append(ended, channel)
		}
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.conn.closing, s.conn.limit)
	defer cancel()
	if len(begun) > 0 {
		if err := p.Subscribe(ctx, begun...); err != nil {
			return err
		}
	}
	if len(ended) > 0 {
		return p.Unsubscribe(ctx, ended...)
	}
	return nil
}

func (s *subscriber) subscribed(channel string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics[channel]
	if t == nil {
		return
	}
	t.confirmed = true
	for w, told := range t.watchers {
		if !told {
			t.watchers[w] = true
			w.confirm(nil)
		}
	}
}

func (s *subscriber) announced(channel, release string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.topics[channel]; t != nil {
		for w := range t.watchers {
			w.announce(release)
		}
	}
}

// broke notes that a connection is over, and reports whether no other one is needed. Watchers that have heard nothing of
// this node learn that they won't soon.
func (s *subscriber) broke(err error) (over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end = nil
	for channel, t := range s.topics {
		again := t.confirmed
		t.confirmed = false
		for w, told := range t.watchers {
			switch {
			case !told && err != nil:
				t.watchers[w] = true
				w.confirm(s.node.explain("subscribe to "+channel, err))
			case again:
				w.announce("") // something may have been announced meanwhile
			}
		}
	}
	return s.closed || len(s.topics) == 0
}

// close ends the subscription. Its goroutine ends with the connection.
func (s *subscriber) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.idle != nil {
		s.idle.Stop()
	}
	if s.end != nil {
		s.end()
	}
}
