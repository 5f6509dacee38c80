//go:build unix

package conformance

import "syscall"

// canStartProcesses says whether contenders can be started, frozen and killed.
const canStartProcesses = true

// freeze stops the process wherever it is, as a long pause of a virtual machine does.
func (c *contender) freeze() { c.e.NoError(c.cmd.Process.Signal(syscall.SIGSTOP)) }

// thaw lets it go on.
func (c *contender) thaw() { c.e.NoError(c.cmd.Process.Signal(syscall.SIGCONT)) }
