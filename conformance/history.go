package conformance

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/leasekit/locker"
)

// history records what contenders for one name did, with the order of calls and returns, to be checked against a model
// of a fenced lock: whoever is granted it finds it free and gets a token above all before, whoever writes holds it.
//
// Its time is a counter: a call that began after another one had returned has the larger number, also where no time has
// passed in between.
type history struct {
	clock atomic.Int64
	mu    sync.Mutex
	ops   []porcupine.Operation
}

type lockOp struct {
	op    string // "grant", "write", "end"
	token locker.Token
}

// lockState is the state of the model.
type lockState struct {
	holder locker.Token // 0: free
	last   locker.Token
}

var fencedLock = porcupine.Model{
	Init: func() any { return lockState{} },
	Step: func(state, input, _ any) (bool, any) {
		s, in := state.(lockState), input.(lockOp)
		switch in.op {
		case "grant":
			return s.holder == 0 && in.token > s.last, lockState{in.token, in.token}
		case "write":
			return s.holder == in.token, s
		}
		return s.holder == in.token, lockState{0, s.last}
	},
	DescribeOperation: func(input, _ any) string {
		in := input.(lockOp)
		return fmt.Sprintf("%s %d", in.op, in.token)
	},
}

func (h *history) now() int64 { return h.clock.Add(1) }

// add records an operation that began at call and has returned now.
func (h *history) add(client int, call int64, op string, token locker.Token) {
	ret := h.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: lockOp{op, token}, Call: call, Return: ret})
}

// check returns an error if no order of the operations that agrees with their times is one that a lock allows. A checker
// that runs out of time says nothing.
func (h *history) check(timeout time.Duration) error {
	h.mu.Lock()
	ops := slices.Clone(h.ops)
	h.mu.Unlock()
	if porcupine.CheckOperationsTimeout(fencedLock, ops, timeout) == porcupine.Illegal {
		return fmt.Errorf("the history of %d operations isn't that of a fenced lock", len(ops))
	}
	return nil
}
