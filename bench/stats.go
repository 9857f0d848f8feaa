package main

import (
	"fmt"
	"runtime"
	"slices"
	"time"
)

// A sample is what one operation cost, on average over a slice of them.
type sample struct{ ns, cpu, bytes, allocs float64 }

// take measures n operations.
func take(loop func(n int) error, n int) (sample, error) {
	runtime.GC() // what another slice left is not this one's
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	used, start := cpuTime(), time.Now()
	err := loop(n)
	took, used := time.Since(start), cpuTime()-used
	runtime.ReadMemStats(&after)
	per := 1 / float64(n)
	return sample{
		ns:     float64(took.Nanoseconds()) * per,
		cpu:    float64(used.Nanoseconds()) * per,
		bytes:  float64(after.TotalAlloc-before.TotalAlloc) * per,
		allocs: float64(after.Mallocs-before.Mallocs) * per,
	}, err
}

// leastOperations is how many a slice has at least, so that what its goroutines cost to
// start is no part of what one operation does.
const leastOperations = 5000

// calibrate finds how many operations take about d.
func calibrate(loop func(n int) error, d time.Duration) (int, error) {
	for n := 64; ; n *= 4 {
		start := time.Now()
		if err := loop(n); err != nil {
			return 0, err
		}
		if took := time.Since(start); took > d/8 || n > 1<<28 {
			return max(leastOperations, int(float64(n)*float64(d)/float64(took))), nil
		}
	}
}

// quantile returns the value below which that share of all lies; 0 if there are none.
func quantile(all []float64, q float64) float64 {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

func median(all []float64) float64 { return quantile(all, 0.5) }

// ratios are of each round to bare in the same one.
func ratios(all, bare []float64) []float64 {
	r := make([]float64, 0, len(all))
	for i := range min(len(all), len(bare)) {
		if bare[i] > 0 {
			r = append(r, all[i]/bare[i])
		}
	}
	return r
}

// times writes ratios as their median, and the least and the greatest.
func times(all []float64) string {
	if len(all) == 0 {
		return ""
	}
	return fmt.Sprintf("%s (%s to %s)", factor(median(all)), factor(slices.Min(all)), factor(slices.Max(all)))
}

func factor(f float64) string {
	if f < 9.95 {
		return fmt.Sprintf("%.2f", f)
	}
	return fmt.Sprintf("%.0f", f)
}

func nanoseconds(ns float64) string {
	switch {
	case ns < 1000:
		return fmt.Sprintf("%.0f ns", ns)
	case ns < 1e6:
		return fmt.Sprintf("%.2f µs", ns/1e3)
	}
	return fmt.Sprintf("%.2f ms", ns/1e6)
}

func size(b float64) string {
	switch {
	case b < 1<<10:
		return fmt.Sprintf("%.0f B", b)
	case b < 1<<20:
		return fmt.Sprintf("%.1f KiB", b/(1<<10))
	}
	return fmt.Sprintf("%.2f MiB", b/(1<<20))
}
