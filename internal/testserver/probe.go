package testserver

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// target is what a probe talks to.
type target struct {
	network, addr      string // as for net.Dial
	tls                *tls.Config
	username, password string
}

// A prober has one exchange in the server's own protocol, and returns nil if the server can be used.
// That a connection opens proves nothing: a published port of a container accepts before the server
// inside it listens, and while it is paused.
type prober func(ctx context.Context, t target) error

// dial opens a connection that ends with ctx.
func (t target) dial(ctx context.Context) (net.Conn, func(), error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, t.network, t.addr)
	if err != nil {
		return nil, nil, err
	}
	if t.tls != nil {
		c = tls.Client(c, t.tls)
	}
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	return c, func() { stop(); c.Close() }, nil
}

func probeRedis(ctx context.Context, t target) error {
	reply, err := redisDo(ctx, t, "PING")
	if err == nil && reply != "+PONG" {
		err = errors.New(reply)
	}
	return err
}

// probeSentinel wants a Sentinel that could fail over: it agrees with the others and knows a replica.
func probeSentinel(ctx context.Context, t target) error {
	reply, err := redisDo(ctx, t, "SENTINEL CKQUORUM main")
	if err == nil && !strings.HasPrefix(reply, "+OK") {
		err = errors.New(reply)
	}
	if err != nil {
		return err
	}
	reply, err = redisDo(ctx, t, "SENTINEL REPLICAS main")
	if err == nil && reply == "*0" {
		err = errors.New("no replica yet")
	}
	return err
}

func probeRedisCluster(ctx context.Context, t target) error {
	reply, err := redisDo(ctx, t, "CLUSTER INFO")
	if err == nil && !strings.Contains(reply, "cluster_state:ok") {
		err = errors.New(reply)
	}
	return err
}

// redisDo returns the first line of the reply, and all of it if it is one string.
func redisDo(ctx context.Context, t target, command string) (string, error) {
	c, done, err := t.dial(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	r := bufio.NewReader(c)
	do := func(command string) (string, error) {
		if _, err := fmt.Fprintf(c, "%s\r\n", command); err != nil {
			return "", err
		}
		line, err := r.ReadString('\n')
		line = strings.TrimSuffix(line, "\r\n")
		if n, ok := strings.CutPrefix(line, "$"); err == nil && ok {
			size, _ := strconv.Atoi(n)
			text := make([]byte, max(size, 0)+2)
			_, err = io.ReadFull(r, text)
			line = string(text)
		}
		return line, err
	}
	if t.password != "" {
		if reply, err := do("AUTH " + t.username + " " + t.password); err != nil || reply != "+OK" {
			return reply, err
		}
	}
	return do(command)
}

// probeEtcd wants a linearizable read to be answered: the member has a leader and a majority.
func probeEtcd(ctx context.Context, t target) error {
	body, err := httpDo(ctx, t, http.MethodGet, "/health", "")
	if err != nil {
		return err
	}
	if !strings.Contains(body, `"health":"true"`) {
		return errors.New(body)
	}
	_, err = httpDo(ctx, t, http.MethodPost, "/v3/kv/range", `{"key":"AA=="}`)
	var status statusError
	if errors.As(err, &status) && strings.Contains(status.body, "user name is empty") {
		return nil // authentication is on: that, too, is an answer
	}
	return err
}

// probeZooKeeper wants the server to serve: one without a majority does not say its mode.
func probeZooKeeper(ctx context.Context, t target) error {
	c, done, err := t.dial(ctx)
	if err != nil {
		return err
	}
	defer done()
	if _, err := io.WriteString(c, "srvr"); err != nil {
		return err
	}
	reply, err := io.ReadAll(c)
	if strings.Contains(string(reply), "\nMode: ") {
		return nil
	}
	if err == nil {
		err = fmt.Errorf("srvr: %q", reply)
	}
	return err
}

// probeConsul wants a leader, and a node to be registered: a session cannot be made before.
func probeConsul(ctx context.Context, t target) error {
	leader, err := httpDo(ctx, t, http.MethodGet, "/v1/status/leader", "")
	if err != nil {
		return err
	}
	if len(strings.TrimSpace(leader)) <= len(`""`) {
		return errors.New("no leader")
	}
	nodes, err := httpDo(ctx, t, http.MethodGet, "/v1/catalog/nodes?consistent", "")
	if err == nil && !strings.Contains(nodes, `"Node"`) {
		err = errors.New("no node is registered")
	}
	return err
}

// statusError is an answer other than 200.
type statusError struct {
	status, body string
}

func (e statusError) Error() string { return e.status + ": " + e.body }

func httpDo(ctx context.Context, t target, method, path, body string) (string, error) {
	scheme := "http://"
	if t.tls != nil {
		scheme = "https://"
	}
	req, err := http.NewRequestWithContext(ctx, method, scheme+t.addr+path, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	if t.password != "" {
		req.Header.Set("X-Consul-Token", t.password)
	}
	// A fresh connection each time: one that was opened before a fault says nothing about after it.
	client := http.Client{Transport: &http.Transport{TLSClientConfig: t.tls, DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = statusError{resp.Status, string(text)}
	}
	return string(text), err
}
