package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// adopt makes this process the one to which orphans among the command's descendants fall, whatever group or session
// they are in: they are left exactly as long as there is a child to wait for.
func adopt() { unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// dieWithParent makes the kernel kill the command when this process dies. What the command has started is out of reach.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = unix.SIGKILL }

// waitFor returns whom to wait for: everybody.
func (c *child) waitFor() int { return -1 }

// nothingLeft is asked when there is no child any more.
func (c *child) nothingLeft() bool { return true }

// descendants returns the processes below this one that aren't in the given process group. It reports false where
// that can't be found out.
func descendants(group int) (pids []int, ok bool) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, false
	}
	type process struct{ pid, group int }
	children := make(map[int][]process)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		// The second field is the command's name in parentheses, and may hold any of them.
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) < 3 {
			continue
		}
		parent, _ := strconv.Atoi(string(fields[1]))
		pgrp, _ := strconv.Atoi(string(fields[2]))
		children[parent] = append(children[parent], process{pid, pgrp})
	}
	if children[os.Getpid()] == nil {
		return nil, false // /proc is another namespace's, or there is nothing to signal
	}
	for queue := []int{os.Getpid()}; len(queue) > 0; queue = queue[1:] {
		for _, p := range children[queue[0]] {
			queue = append(queue, p.pid)
			if p.group != group {
				pids = append(pids, p.pid)
			}
		}
	}
	return pids, true
}
