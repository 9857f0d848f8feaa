package deliver

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// A Schedule says how often a delivery is attempted, and how long it waits after each
// failure. Make one with Steps or Doubling, or fill it in.
type Schedule struct {
	// Attempts is how many there are in all, the first included. At least 1.
	Attempts int

	// Pause returns how long to wait after the attempt of that number failed: 1 is the
	// first. It is called once for each failure, from any goroutine.
	Pause func(attempt int) time.Duration
}

// Steps waits as listed: Steps(5*time.Minute, 30*time.Minute) makes three attempts.
// For more of them set Attempts; the last step then repeats.
//
//	s := deliver.Steps(5*time.Minute, 30*time.Minute, 3*time.Hour, 18*time.Hour, 24*time.Hour)
//	s.Attempts = 10 // every 24 h from the sixth on: 141 h 35 min from first to last
//
// Steps panics without a step, and if one is not positive.
func Steps(steps ...time.Duration) Schedule {
	if len(steps) == 0 || slices.Min(steps) <= 0 {
		panic(fmt.Sprintf("deliver: Steps(%v): steps must be there and positive", steps))
	}
	steps = slices.Clone(steps)
	return Schedule{
		Attempts: len(steps) + 1,
		Pause:    func(attempt int) time.Duration { return steps[min(max(attempt, 1), len(steps))-1] },
	}
}

// Doubling waits first, and twice as long after each further failure, up to limit,
// each time more or less by up to the given share of it.
//
// Doubling(10*time.Second, 30*time.Minute, 0.2, 6) waits 10, 20, 40, 80, 160 s:
// 5 min 10 s in all. Twelve attempts take 2 h 12 min.
//
// Doubling panics if first is not positive, limit is less than first, spread is not
// in [0, 1), or attempts is less than 1.
func Doubling(first, limit time.Duration, spread float64, attempts int) Schedule {
	if first <= 0 || limit < first || !(spread >= 0 && spread < 1) || attempts < 1 {
		panic(fmt.Sprintf("deliver: Doubling(%v, %v, %v, %d) makes no sense", first, limit, spread, attempts))
	}
	return Schedule{
		Attempts: attempts,
		Pause: func(attempt int) time.Duration {
			d := limit
			if shift := max(attempt, 1) - 1; shift < 62 && first <= limit>>shift {
				d = first << shift
			}
			return scale(d, 1-spread+2*spread*rand.Float64())
		},
	}
}

// scale multiplies and saturates.
func scale(d time.Duration, by float64) time.Duration {
	if f := float64(d) * by; f < math.MaxInt64 {
		return time.Duration(f)
	}
	return math.MaxInt64
}

// standard is the schedule of who names none.
var standard = Doubling(10*time.Second, 30*time.Minute, 0.2, 12)

func (s Schedule) fault() string {
	switch {
	case s.Attempts < 1:
		return "Attempts is less than 1"
	case s.Attempts > math.MaxInt16:
		return "Attempts is more than 32,767"
	case s.Pause == nil && s.Attempts > 1:
		return "Pause is nil"
	}
	return ""
}
