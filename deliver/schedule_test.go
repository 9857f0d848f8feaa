package deliver_test

import (
	"math"
	"testing"
	"time"

	"github.com/retrip-go/retrip/deliver"
	"github.com/stretchr/testify/require"
)

// pauses are those of a schedule, and all together.
func pauses(s deliver.Schedule) (each []time.Duration, sum time.Duration) {
	for attempt := 1; attempt < s.Attempts; attempt++ {
		each = append(each, s.Pause(attempt))
		sum += each[attempt-1]
	}
	return each, sum
}

func TestSchedulesPauseAsTheirNamesSay(t *testing.T) {
	t.Parallel()
	const s, m, h = time.Second, time.Minute, time.Hour
	webhooks := deliver.Steps(5*m, 30*m, 3*h, 18*h, 24*h)
	tenTimes := webhooks
	tenTimes.Attempts = 10
	for name, c := range map[string]struct {
		schedule deliver.Schedule
		each     []time.Duration
		sum      time.Duration
	}{
		"one step":                {deliver.Steps(s), []time.Duration{s}, s},
		"steps":                   {webhooks, []time.Duration{5 * m, 30 * m, 3 * h, 18 * h, 24 * h}, 45*h + 35*m},
		"the last step repeats":   {tenTimes, []time.Duration{5 * m, 30 * m, 3 * h, 18 * h, 24 * h, 24 * h, 24 * h, 24 * h, 24 * h}, 141*h + 35*m},
		"six attempts":            {deliver.Doubling(10*s, 30*m, 0, 6), []time.Duration{10 * s, 20 * s, 40 * s, 80 * s, 160 * s}, 5*m + 10*s},
		"one attempt":             {deliver.Doubling(s, s, 0, 1), nil, 0},
		"doubling up to a limit":  {deliver.Doubling(3*s, 10*s, 0, 5), []time.Duration{3 * s, 6 * s, 10 * s, 10 * s}, 29 * s},
		"first is the limit":      {deliver.Doubling(s, s, 0, 3), []time.Duration{s, s}, 2 * s},
		"the longest of Duration": {deliver.Doubling(math.MaxInt64, math.MaxInt64, 0, 2), []time.Duration{math.MaxInt64}, math.MaxInt64},
	} {
		each, sum := pauses(c.schedule)
		require.Equal(t, c.each, each, name)
		require.Equal(t, c.sum, sum, name)
	}
	_, sum := pauses(deliver.Doubling(10*s, 30*m, 0, 12))
	require.Equal(t, 2*h+12*m+30*s, sum, "twelve attempts")
}

func TestStepsKeepsItsOwnCopy(t *testing.T) {
	t.Parallel()
	steps := []time.Duration{time.Second, time.Minute}
	s := deliver.Steps(steps...)
	steps[0] = time.Hour
	require.Equal(t, time.Second, s.Pause(1))
	require.Equal(t, time.Second, s.Pause(0), "what is no attempt's number does no harm")
	require.Equal(t, time.Second, s.Pause(-1))
	require.Equal(t, time.Minute, s.Pause(math.MaxInt))
}

func TestDoublingSpreadsWithinItsBounds(t *testing.T) {
	t.Parallel()
	s := deliver.Doubling(10*time.Second, 30*time.Minute, 0.2, 12)
	for attempt, middle := range map[int]time.Duration{1: 10 * time.Second, 4: 80 * time.Second, 9: 30 * time.Minute, 10000: 30 * time.Minute} {
		least, most := time.Duration(math.MaxInt64), time.Duration(0)
		for range 2000 {
			p := s.Pause(attempt)
			require.InDelta(t, middle, p, 0.2*float64(middle)+1)
			least, most = min(least, p), max(most, p)
		}
		require.Greater(t, most-least, middle*3/10, "of a range of four tenths")
	}
}

func TestDoublingSaturates(t *testing.T) {
	t.Parallel()
	s := deliver.Doubling(1, math.MaxInt64, 0.9, 2)
	for _, attempt := range []int{1, 2, 61, 62, 63, 64, 65, 1000, math.MaxInt} {
		for range 100 {
			require.GreaterOrEqual(t, s.Pause(attempt), time.Duration(0), attempt)
		}
	}
	require.Equal(t, time.Duration(1)<<62, deliver.Doubling(1<<61, math.MaxInt64, 0, 2).Pause(2))
	require.Equal(t, time.Duration(math.MaxInt64), deliver.Doubling(1, math.MaxInt64, 0, 2).Pause(64))
}

func TestSchedulesThatMakeNoSensePanic(t *testing.T) {
	t.Parallel()
	const s = time.Second
	nan := math.NaN()
	for name, f := range map[string]func(){
		"no step":          func() { deliver.Steps() },
		"a step of zero":   func() { deliver.Steps(s, 0) },
		"a negative step":  func() { deliver.Steps(-s) },
		"first zero":       func() { deliver.Doubling(0, s, 0, 1) },
		"limit below":      func() { deliver.Doubling(s, s-1, 0, 1) },
		"negative spread":  func() { deliver.Doubling(s, s, -0.1, 1) },
		"a spread of one":  func() { deliver.Doubling(s, s, 1, 1) },
		"no spread at all": func() { deliver.Doubling(s, s, nan, 1) },
		"no attempt":       func() { deliver.Doubling(s, s, 0, 0) },
		"zero Schedule":    func() { deliver.WithSchedule("", deliver.Schedule{}) },
		"no Pause":         func() { deliver.WithSchedule("", deliver.Schedule{Attempts: 2}) },
		"too many":         func() { deliver.WithSchedule("", deliver.Schedule{Attempts: 40000, Pause: deliver.Steps(s).Pause}) },
	} {
		require.Panics(t, f, name)
	}
	require.NotPanics(t, func() { deliver.WithSchedule("", deliver.Schedule{Attempts: 1}) })
}
