package deliver

import "time"

// AgeOf is that of a delivery which was planned for a time, zero if for none.
func AgeOf(created, planned, now time.Time) time.Duration {
	return delivery{Planned: planned}.age(created, now)
}
