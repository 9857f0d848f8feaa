//go:build unix

package main

import (
	"syscall"
	"time"
)

// cpuTime is the processor time this process has used: what others on the machine do
// adds less to it than to wall time.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
