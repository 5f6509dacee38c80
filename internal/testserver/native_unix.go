//go:build unix

package testserver

import (
	"os"
	"syscall"
)

// freeze stops a process, or lets it go on.
func freeze(p *os.Process, stop bool) error {
	if stop {
		return p.Signal(syscall.SIGSTOP)
	}
	return p.Signal(syscall.SIGCONT)
}
