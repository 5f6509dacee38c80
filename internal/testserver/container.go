package testserver

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// container is a host that runs a server in Docker.
type container struct {
	name string
	spec *spec
	net  string // the container whose network namespace the server lives in: name, or its group's
}

func (c *container) do(ctx context.Context, a Action) error {
	var err error
	switch a {
	case Pause:
		_, err = docker(ctx, "pause", c.name)
	case Resume:
		_, err = docker(ctx, "unpause", c.name)
	case Kill:
		_, err = docker(ctx, "kill", "--signal", "KILL", c.name)
		if err == nil { // it returns before the process has ended
			_, err = docker(ctx, "wait", c.name)
		}
	case Stop:
		_, err = docker(ctx, "stop", "--time", "10", c.name)
	case Start:
		_, err = docker(ctx, "start", c.name)
	case Restart:
		_, err = docker(ctx, "restart", "--time", "10", c.name)
	default:
		return c.firewall(ctx, a)
	}
	return err
}

func (c *container) exec(ctx context.Context, args []string) (string, error) {
	return docker(ctx, append([]string{"exec", c.name}, args...)...)
}

func (c *container) logs(ctx context.Context) (string, error) {
	return docker(ctx, "logs", "--tail", "50", c.name)
}

// firewall changes the packet filter of the server's network namespace, from a container of its own
// in there that has the tools and the right. The rules are in a chain of their own, one for each
// server, so that healing one member of a namespace does not heal another.
func (c *container) firewall(ctx context.Context, a Action) error {
	image, err := imageFor("tools")
	if err != nil {
		return unsupported{err}
	}
	chain := fmt.Sprintf("LOCKER%d", c.spec.inside)
	in, out := "iptables -w -D INPUT -j "+chain, "iptables -w -D OUTPUT -j "+chain
	var script []string
	if a == Heal {
		// After a restart of the container the namespace is new: there is nothing to remove then.
		script = []string{"iptables -w -nL " + chain + " >/dev/null 2>&1 || exit 0", in, out, "iptables -w -F " + chain, "iptables -w -X " + chain}
	} else {
		rules, err := c.rules(a)
		if err != nil {
			return err
		}
		script = append(script, "iptables -w -N "+chain)
		for _, r := range rules {
			script = append(script, "iptables -w -A "+chain+" "+r)
		}
		script = append(script, strings.Replace(in, "-D", "-I", 1), strings.Replace(out, "-D", "-I", 1))
	}
	_, err = docker(ctx, "run", "--rm", "--label", labelTest+"=tools", "--network", "container:"+c.net, "--cap-add", "NET_ADMIN", image,
		"sh", "-ec", strings.Join(script, "\n"))
	return err
}

func (c *container) rules(a Action) ([]string, error) {
	if a == Isolate {
		if len(c.spec.peers) == 0 {
			return nil, unsupported{errors.New("no peers to isolate it from")}
		}
		var rules []string
		for _, p := range c.spec.peers {
			proto, port, _ := strings.Cut(p, "/")
			rules = append(rules, "-p "+proto+" --dport "+port+" -j DROP", "-p "+proto+" --sport "+port+" -j DROP")
		}
		return rules, nil
	}
	verdict := "-j DROP"
	if a == Reject {
		verdict = "-j REJECT --reject-with tcp-reset"
	}
	if c.net == c.name && a == Cut {
		return []string{"-i lo -j RETURN", "-o lo -j RETURN", "-j DROP"}, nil
	}
	// Resets pass: they are what REJECT itself sends.
	rules := []string{"-p tcp --tcp-flags RST RST -j RETURN"}
	if a == Cut {
		rules = nil
	}
	rules = append(rules, fmt.Sprintf("-p tcp --dport %d %s", c.spec.inside, verdict), fmt.Sprintf("-p tcp --sport %d %s", c.spec.inside, verdict))
	if c.spec.bus != 0 {
		rules = append(rules, fmt.Sprintf("-p tcp --dport %d %s", c.spec.bus, verdict), fmt.Sprintf("-p tcp --sport %d %s", c.spec.bus, verdict))
	}
	return rules, nil
}
