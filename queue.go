package locker

// queue is the local queue of one name: those of this process who want it, first come, first served. Only its head
// contends at the backend. It exists as long as somebody is in it.
type queue struct {
	head, tail *lease
	answer     error // the backend's last answer: nil if there is none yet, ErrHeld, or an error matching ErrUnavailable
}

// waiter is a lease's place in a queue.
type waiter struct {
	next, prev *lease
	try        bool       // it doesn't wait behind others: it takes the head's answer
	turn       chan error // nil: it is the head; an error: it is answered. Made when it isn't the head at once
}

// join puts l at the end of the queue. A try that finds an answer takes it and doesn't join. It needs the engine's mutex.
func (e *engine) join(l *lease) error {
	q, ok := e.queues[l.name]
	if !ok {
		e.queues[l.name] = queue{head: l, tail: l}
		return nil
	}
	if l.waiter.try && q.answer != nil {
		return q.answer
	}
	l.waiter.turn = make(chan error, 1)
	l.waiter.prev, q.tail.waiter.next = q.tail, l
	q.tail = l
	e.queues[l.name] = q
	return nil
}

// leave takes l out of the queue. If it was the head, the next one's turn comes.
func (e *engine) leave(l *lease) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unqueue(e.queues[l.name], l)
}

// unqueue is leave for those who hold the mutex and have the queue.
func (e *engine) unqueue(q queue, l *lease) {
	w := &l.waiter
	if q.head != l && w.prev == nil {
		return // it was answered and taken out
	}
	q.unlink(l)
	if q.head == nil {
		delete(e.queues, l.name)
		return
	}
	if w.prev == nil {
		q.head.waiter.turn <- nil
	}
	w.next, w.prev = nil, nil
	e.queues[l.name] = q
}

func (q *queue) unlink(l *lease) {
	w := &l.waiter
	if w.prev != nil {
		w.prev.waiter.next = w.next
	} else {
		q.head = w.next
	}
	if w.next != nil {
		w.next.waiter.prev = w.prev
	} else {
		q.tail = w.prev
	}
}

// answered notes what the backend has said to the head of a queue.
func (e *engine) answered(name string, answer error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if q, ok := e.queues[name]; ok {
		q.answered(answer)
		e.queues[name] = q
	}
}

// answered takes the head's answer, and gives it to those who wait for nothing else.
func (q *queue) answered(answer error) {
	q.answer = answer
	for l := q.head.waiter.next; l != nil; {
		next := l.waiter.next
		if l.waiter.try {
			q.unlink(l)
			l.waiter.next, l.waiter.prev = nil, nil
			l.waiter.turn <- answer
		}
		l = next
	}
}

// answer returns the last answer that the head of a queue got.
func (e *engine) answer(name string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.queues[name].answer
}
