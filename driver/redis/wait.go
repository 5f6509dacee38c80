package redis

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// subscriber has one subscription connection for all watched names, as long as there are any and for a moment longer.
// A connection that fails in any way is thrown away with all that was waited for on it; the next Watch makes a new one.
type subscriber struct {
	conn *conn

	mu      sync.Mutex
	closed  bool
	session *session
}

// linger is how long a connection without subscriptions is kept: waits for busy names follow each other.
const linger = time.Second

// session is one subscription connection. The subscriber's mutex guards it.
type session struct {
	pubsub  *redis.PubSub
	ctx     context.Context
	end     context.CancelFunc
	cut     func()            // closes the connection without blocking
	ready   bool              // it is connected, and requests are written to it
	topics  map[string]*topic // by channel
	sent    []*request        // those without a reply, oldest first: replies come in the same order
	idle    *time.Timer       // runs while there are no topics
	stopped chan struct{}     // closed when its goroutine has ended
}

// topic is a subscribed channel with those who watch it.
type topic struct {
	watchers map[*watcher]struct{}
	request  *request // that subscribed it
}

type watcher struct{ hints chan struct{} }

// request is a SUBSCRIBE or UNSUBSCRIBE of one channel.
type request struct {
	kind, channel string
	done          chan struct{} // closed when it is answered, or never will be
	err           error
}

var errBroken = errors.New("redis: the subscription broke")

// Watch subscribes to the channel on which releases of the name are announced.
func (c *conn) Watch(ctx context.Context, name string) (<-chan struct{}, func(), error) {
	s := &c.hints
	channel := c.layout.channel(c.layout.key(name))
	w := &watcher{hints: make(chan struct{}, 1)}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, nil, errClosed
	}
	opened := s.session == nil
	if opened {
		s.session = s.open()
	}
	se := s.session
	t := se.topics[channel]
	if t == nil {
		se.idle.Stop()
		t = &topic{watchers: make(map[*watcher]struct{})}
		se.topics[channel] = t
		t.request = se.write(redisSubscribe, channel)
	}
	t.watchers[w] = struct{}{}
	r := t.request
	if opened {
		go s.serve(se)
	}
	s.mu.Unlock()

	var once sync.Once
	stop := func() { once.Do(func() { s.stop(se, channel, w) }) }
	select {
	case <-r.done:
		if r.err == nil {
			return w.hints, stop, nil
		}
		stop()
		return nil, nil, explain("subscribe to "+channel, r.err)
	case <-ctx.Done():
		stop()
		return nil, nil, ctx.Err()
	}
}

const redisSubscribe, redisUnsubscribe = "subscribe", "unsubscribe"

// open makes a session, which connects for its first request. It needs the mutex.
func (s *subscriber) open() *session {
	se := &session{topics: make(map[string]*topic), stopped: make(chan struct{})}
	se.ctx, se.end = context.WithCancel(context.Background())
	se.pubsub, se.cut = s.conn.client.subscription(se.ctx)
	se.idle = time.AfterFunc(linger, func() { s.expire(se) })
	return se
}

// write sends a request, or leaves it for serve while that is connecting. It needs the mutex.
func (se *session) write(kind, channel string) *request {
	r := &request{kind: kind, channel: channel, done: make(chan struct{})}
	se.sent = append(se.sent, r)
	if se.ready {
		se.send(r)
	}
	return r
}

// send writes a request to the socket. What fails here when it is connected is noticed by serve as well.
func (se *session) send(r *request) error {
	if r.kind == redisSubscribe {
		return se.pubsub.Subscribe(se.ctx, r.channel)
	}
	return se.pubsub.Unsubscribe(se.ctx, r.channel)
}

// serve connects and reads until the session breaks or ends.
func (s *subscriber) serve(se *session) {
	defer close(se.stopped)
	s.mu.Lock()
	first := se.sent[0]
	s.mu.Unlock()
	err := se.send(first) // connects
	if err == nil {
		s.mu.Lock()
		se.ready = true
		for _, r := range se.sent[1:] {
			se.send(r)
		}
		s.mu.Unlock()
	}
	for err == nil {
		var msg any
		msg, err = se.pubsub.Receive(se.ctx)
		switch msg := msg.(type) {
		case *redis.Subscription:
			err = s.confirmed(se, msg.Kind, msg.Channel)
		case *redis.Message:
			s.hint(se, msg.Channel)
		}
		if err != nil && isReply(err) {
			err = s.refused(se, err)
		}
	}
	s.broke(se, err)
}

// confirmed takes the reply to the oldest request.
func (s *subscriber) confirmed(se *session, kind, channel string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(se.sent) == 0 || se.sent[0].kind != kind || se.sent[0].channel != channel {
		return errBroken // the client library has connected anew
	}
	close(se.sent[0].done)
	se.sent = se.sent[1:]
	return nil
}

// refused takes an error reply: one watcher lacks a right, and the others go on.
func (s *subscriber) refused(se *session, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(se.sent) == 0 {
		return err
	}
	r := se.sent[0]
	se.sent = se.sent[1:]
	r.err = err
	if t := se.topics[r.channel]; t != nil && t.request == r {
		delete(se.topics, r.channel) // nothing to unsubscribe from
		se.rest()
	}
	close(r.done)
	return nil
}

func (s *subscriber) hint(se *session, channel string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := se.topics[channel]; t != nil {
		for w := range t.watchers {
			select {
			case w.hints <- struct{}{}:
			default:
			}
		}
	}
}

// stop ends a watch.
func (s *subscriber) stop(se *session, channel string, w *watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := se.topics[channel]
	if t == nil {
		return
	}
	if _, mine := t.watchers[w]; !mine {
		return // a later watch of the same name
	}
	if delete(t.watchers, w); len(t.watchers) == 0 {
		delete(se.topics, channel)
		se.write(redisUnsubscribe, channel)
		se.rest()
	}
}

// rest lets the session end soon if nobody needs it. It needs the mutex.
func (se *session) rest() {
	if len(se.topics) == 0 {
		se.idle.Reset(linger)
	}
}

func (s *subscriber) expire(se *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(se.topics) == 0 && s.session == se {
		s.session = nil
		se.finish()
	}
}

func (se *session) finish() {
	se.idle.Stop()
	se.end()
	se.cut()
}

// broke tells all watchers that the session is over.
func (s *subscriber) broke(se *session, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session == se {
		s.session = nil
	}
	se.finish()
	for _, r := range se.sent {
		r.err = err
		close(r.done)
	}
	for _, t := range se.topics {
		for w := range t.watchers {
			close(w.hints)
		}
	}
	se.sent, se.topics = nil, make(map[string]*topic)
}

// close ends the subscriptions and waits, for less than a second, until their goroutine has ended.
func (s *subscriber) close() {
	s.mu.Lock()
	s.closed = true
	se := s.session
	s.session = nil
	if se != nil {
		se.finish()
	}
	s.mu.Unlock()
	if se != nil {
		select {
		case <-se.stopped:
		case <-time.After(time.Second / 2):
		}
	}
}
