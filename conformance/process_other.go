//go:build !unix

package conformance

// canStartProcesses says whether contenders can be started, frozen and killed.
const canStartProcesses = false

func (c *contender) freeze() { c.e.fail("a process can't be frozen here") }
func (c *contender) thaw()   { c.e.fail("a process can't be frozen here") }
