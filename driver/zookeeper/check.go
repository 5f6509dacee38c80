package zookeeper

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/leasekit/locker/driver"
)

// checkName is a folder that is made and removed again. No name is encoded like this.
const checkName = "%check"

// Check looks at what decides whether locks work and how soon they are free again.
func (c *conn) Check(ctx context.Context) ([]driver.Finding, error) {
	began := c.cfg.Now()
	s, err := c.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer s.leave()
	connected := c.cfg.Now().Sub(began)
	c.mu.Lock()
	granted, addr := s.timeout, s.wire.addr
	c.mu.Unlock()

	findings := []driver.Finding{checkTimeout(c.cfg.TTL, granted), c.checkRights(ctx, s)}
	latency := c.cfg.Now()
	if _, err := s.transact(ctx, heartbeat()); err == nil {
		findings = append(findings, checkLatency(c.cfg.Now().Sub(latency), connected, granted))
	}
	srvr, err := c.ask(ctx, addr, "srvr")
	findings = append(findings, checkServer(srvr, err))
	conf, err := c.ask(ctx, addr, "conf")
	return append(findings, checkConf(conf, err)...), nil
}

func checkTimeout(asked, granted time.Duration) driver.Finding {
	f := driver.Finding{Check: "timeout", Detail: fmt.Sprintf("sessions of %v are granted", granted)}
	if granted != asked {
		f.Severity = driver.Note
		f.Detail = fmt.Sprintf("sessions of %v are granted, not of %v", granted, asked)
		f.Advice = "set a TTL within the servers' minSessionTimeout and maxSessionTimeout, or change these"
	}
	return f
}

// checkRights does with a folder of its own all that a lock does.
func (c *conn) checkRights(ctx context.Context, s *session) driver.Finding {
	folder := c.prefix + "/" + checkName
	f := driver.Finding{Check: "rights", Detail: "nodes under " + parent(folder) + " can be created, read and deleted"}
	p := &place{turn: make(chan struct{}, 1), req: driver.Request{Name: "\x00" + checkName, ID: strings.Repeat("0", 32), Owner: c.cfg.Owner}, s: s, folder: folder}
	err := s.create(ctx, p)
	if err == nil {
		_, err = s.children(ctx, folder)
	}
	if p.tried() {
		if undo := s.undo(ctx, p); err == nil {
			err = undo
		}
	}
	c.mu.Lock()
	delete(c.folders, p.req.Name)
	c.mu.Unlock()
	if err != nil {
		f.Severity, f.Detail, f.Advice = driver.Fail, err.Error(), "give the user the rights, see the package's documentation"
	}
	return f
}

func checkLatency(write, connect, timeout time.Duration) driver.Finding {
	f := driver.Finding{Check: "latency", Detail: fmt.Sprintf("a write took %v, a session %v", write.Round(time.Microsecond), connect.Round(time.Microsecond))}
	if write > timeout/20 {
		f.Severity = driver.Warn
		f.Advice = fmt.Sprintf("renewals may come too late with a TTL of %v: set a longer one, or look at the servers' disks", timeout)
	}
	return f
}

func checkServer(srvr string, err error) driver.Finding {
	f := driver.Finding{Check: "server"}
	version, ok := line(srvr, "Zookeeper version: ")
	if err != nil || !ok {
		f.Severity, f.Detail, f.Advice = driver.Note, "the server doesn't tell its version", "allow srvr in 4lw.commands.whitelist"
		return f
	}
	version, _, _ = strings.Cut(version, "-")
	mode, _ := line(srvr, "Mode: ")
	f.Detail = "version " + version + ", " + mode
	switch {
	case strings.HasPrefix(version, "3.4."):
		f.Severity, f.Advice = driver.Warn, "use 3.5 or newer: older ones keep the empty folders of all locks"
	case mode == "standalone":
		f.Severity, f.Advice = driver.Note, "a single server: locks stop while it is away. Three or five go on"
	}
	return f
}

// checkConf looks at settings, where the server tells them.
func checkConf(conf string, err error) []driver.Finding {
	number := func(key string) int {
		s, ok := line(conf, key+"=")
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if !ok || err != nil {
			return -1
		}
		return n
	}
	tick, lowest := number("tickTime"), number("minSessionTimeout")
	if err != nil || tick < 0 {
		return []driver.Finding{{Check: "settings", Severity: driver.Note, Detail: "the server doesn't tell its settings",
			Advice: "allow conf in 4lw.commands.whitelist, so that tickTime, minSessionTimeout and maxClientCnxns can be looked at"}}
	}
	bounds := driver.Finding{Check: "ticks", Detail: fmt.Sprintf("tickTime %d ms, minSessionTimeout %d ms", tick, lowest)}
	if lowest >= 0 && lowest < 2*tick {
		bounds.Severity = driver.Warn
		bounds.Advice = "set minSessionTimeout to at least two ticks, or use TTLs of at least two: the end of shorter leases can't be computed safely"
	}
	limit := number("maxClientCnxns")
	conns := driver.Finding{Check: "connections", Detail: fmt.Sprintf("up to %d connections from one address", limit)}
	switch {
	case limit == 0:
		conns.Detail = "any number of connections from one address"
	case limit < 10:
		conns.Severity = driver.Warn
		conns.Advice = "raise maxClientCnxns: each process has one connection, and a second one for a moment when it makes a new session"
	}
	return []driver.Finding{bounds, conns}
}

// line returns the rest of the line that begins with a word.
func line(text, begins string) (string, bool) {
	for l := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(l, begins); ok {
			return strings.TrimSpace(rest), true
		}
	}
	return "", false
}

// ask sends one of the servers' four-letter words.
func (c *conn) ask(ctx context.Context, addr, word string) (string, error) {
	ctx, stop := context.WithTimeout(ctx, 2*time.Second)
	defer stop()
	conn, err := c.o.dial(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	if conn, err = c.secured(ctx, conn, addr); err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := io.WriteString(conn, word); err != nil {
		return "", err
	}
	reply, err := io.ReadAll(io.LimitReader(conn, 64<<10))
	return string(reply), err
}
