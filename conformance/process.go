package conformance

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/leasekit/locker"
)

// processes starts contenders in processes of their own, which can be frozen and killed: the test binary runs itself
// again, up to the call of Run.
type processes struct{ test string }

// envTask makes a process a contender. It holds a task.
const envTask = "LOCKER_CONFORMANCE_TASK"

// task says what a contender is to work with.
type task struct {
	URL     string
	TTL     time.Duration
	Owner   string
	Who     string
	Witness string // path of the log
}

func newProcesses(test string) *processes { return &processes{test: test} }

// contender is a process that holds locks on demand.
type contender struct {
	e      *env
	who    string
	cmd    *exec.Cmd
	orders *json.Encoder
	events chan []string // fields of a line; closed when the process has ended
	dead   chan struct{}
}

// order is what a contender is told to do.
type order struct {
	Do     string // acquire, try, release, remaining or loop
	Name   string
	Rounds int
}

// shared makes a witness for several processes.
func (e *env) shared() (w *witness, path string) {
	dir, err := os.MkdirTemp("", "locker-witness-")
	e.NoError(err)
	path = filepath.Join(dir, "witness")
	w, err = newWitnessFile(path)
	e.NoError(err)
	e.cleanup(func() {
		w.file.Close()
		os.RemoveAll(dir)
	})
	return w, path
}

// start starts a contender, with proxies of its own to the servers.
func (e *env) start(who, owner, witness string) *contender {
	addrs := e.b.Addrs
	if len(addrs) > 0 {
		l, err := newProxies(addrs, e.tag)
		e.NoError(err, "the suite's own proxy")
		e.cleanup(l.Close)
		addrs = l.addrs()
	}
	text, err := json.Marshal(task{URL: e.b.URL(addrs), TTL: e.ttl, Owner: owner, Who: who, Witness: witness})
	e.NoError(err)
	var pattern []string
	for part := range strings.SplitSeq(e.process.test, "/") {
		pattern = append(pattern, "^"+regexp.QuoteMeta(part)+"$")
	}
	cmd := exec.Command(os.Args[0], "-test.run="+strings.Join(pattern, "/"), "-test.timeout=30m")
	cmd.Env = append(os.Environ(), envTask+"="+string(text))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	e.NoError(err)
	r, w, err := os.Pipe()
	e.NoError(err)
	cmd.ExtraFiles = []*os.File{w}
	e.NoError(cmd.Start(), "start a contender")
	w.Close()
	c := &contender{e: e, who: who, cmd: cmd, orders: json.NewEncoder(stdin), events: make(chan []string, 1000), dead: make(chan struct{})}
	e.spawn(func() {
		defer close(c.events)
		defer r.Close()
		for s := bufio.NewScanner(r); s.Scan(); {
			c.events <- strings.Fields(s.Text())
		}
	})
	e.spawn(func() {
		defer close(c.dead)
		cmd.Wait()
	})
	e.cleanup(c.kill)
	c.expect("ready")
	return c
}

// kill ends the process without giving it a chance, and returns once it is gone.
func (c *contender) kill() {
	c.cmd.Process.Kill()
	<-c.dead
}

func (c *contender) order(do, name string, rounds int) {
	c.e.NoError(c.orders.Encode(order{do, name, rounds}), "contender %s", c.who)
}

// expect returns the fields after the first of the next event, which has to be the given one.
func (c *contender) expect(event string) []string {
	return c.expectWithin(event, c.e.b.TakeOver+2*c.e.patience)
}

func (c *contender) expectWithin(event string, within time.Duration) []string {
	t := time.NewTimer(within)
	defer t.Stop()
	select {
	case f, ok := <-c.events:
		if !ok {
			c.e.fail("contender %s has ended, instead of %q", c.who, event)
		}
		if f[0] != event {
			c.e.fail("contender %s: %q instead of %q", c.who, strings.Join(f, " "), event)
		}
		return f[1:]
	case <-t.C:
		c.e.fail("contender %s: no %q within %v", c.who, event, within)
	}
	return nil
}

// acquire makes the contender acquire a name and returns the token.
func (c *contender) acquire(name string) locker.Token {
	c.order("acquire", name, 0)
	return c.held()
}

func (c *contender) held() locker.Token {
	f := c.expect("held")
	n, err := strconv.ParseUint(f[0], 10, 64)
	c.e.NoError(err)
	return locker.Token(n)
}

func (c *contender) release() {
	c.order("release", "", 0)
	c.expect("released")
}

// Contender does nothing, unless the process is a contender that [Run] has started: then it is one, and doesn't return.
// A test that does anything before Run which takes long or can't be done twice, such as starting a server, calls it
// first; TestMain is a good place.
func Contender() {
	if _, ok := os.LookupEnv(envTask); !ok {
		return
	}
	if err := contend(os.Getenv(envTask)); err != nil {
		fmt.Fprintln(os.Stderr, "conformance: contender:", err)
		os.Exit(1)
	}
	os.Exit(0)
}
