package main

import "time"

// A scenario is one experiment.
type scenario struct {
	name  string
	title string
	about string   // what -list says: the set-up, and what there is to see
	heeds []string // flags that it heeds beside those of all scenarios

	// What keeps settings of one's own from running for hours.
	crowd int           // the most clients
	lasts time.Duration // of virtual time in which requests come

	run func(*lab, settings) report
}

// A report is what came of a scenario.
type report struct {
	tables   []table
	pictures []picture
}

// scenarios are in the order in which they are run and listed.
func scenarios() []scenario {
	return []scenario{herd, contention, bucket, metastable, shedding, cascade, outage, fleet}
}

// clientFlags are those that describe the client of one's own.
var clientFlags = []string{"attempts", "backoff", "base", "cap", "quota", "breaker", "cooldowns", "timeout", "budget"}
