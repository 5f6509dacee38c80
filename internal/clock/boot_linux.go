package clock

import (
	"syscall"
	"time"
	"unsafe"
)

// clockBoottime is CLOCK_BOOTTIME of clock_gettime(2): CLOCK_MONOTONIC plus the time that the system was suspended.
const clockBoottime = 7

// boot reads CLOCK_BOOTTIME by system call, since the standard library offers no other way to it. It returns 0
// where the kernel refuses, which leaves the monotonic clock alone to count.
func boot() time.Duration {
	var ts syscall.Timespec
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		return 0
	}
	return time.Duration(ts.Nano())
}
