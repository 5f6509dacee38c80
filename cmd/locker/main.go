// Command locker runs other commands under a lock.
package main

import (
	"os"
	"runtime"

	_ "github.com/leasekit/locker/driver/all"
)

// The kernel sends the parent-death signal to a command when the thread that started it ends. The main goroutine starts
// it, and the main thread ends with the process.
func init() { runtime.LockOSThread() }

func main() { os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr)) }
