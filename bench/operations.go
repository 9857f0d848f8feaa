package main

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"net/http"
	"time"

	"github.com/google/uuid"
)

// A measure fills one table.
type measure struct {
	name string
	doc  string
	run  func(b *bench) (table, error)
}

// An operation is what a measure in nanoseconds counts.
type operation struct {
	name, doc string
	loop      func(c contender) func(n int) error
	skip      func(c contender) string // why a contender is left out; "" if it is not
	extra     []contender              // beside those of all measures
	claim     func(rows map[string]row) []claim
}

// A row is what was measured of one contender.
type row struct{ ns, cpu, bytes, allocs []float64 }

func (o operation) measure() measure { return measure{o.name, o.doc, o.run} }

func (o operation) run(b *bench) (table, error) {
	type entry struct {
		contender
		loop func(int) error
		n    int
	}
	t := table{head: []string{"", "time", "times bare", "CPU, times bare", "bytes", "allocations", "over bare"}}
	var entries []entry
	for _, c := range append(append([]contender{}, contenders...), o.extra...) {
		if o.skip != nil {
			if why := o.skip(c); why != "" {
				t.notes = append(t.notes, c.name+": "+why)
				continue
			}
		}
		loop := o.loop(c)
		n, err := calibrate(loop, b.slice)
		if err != nil {
			return t, fmt.Errorf("%s: %s: %w", o.name, c.name, err)
		}
		entries = append(entries, entry{c, loop, n})
	}
	rows := make(map[string]row)
	for round := range b.rounds {
		for i := range entries {
			e := entries[(i+round)%len(entries)] // nobody is always the first after somebody
			s, err := take(e.loop, e.n)
			if err != nil {
				return t, fmt.Errorf("%s: %s: %w", o.name, e.name, err)
			}
			r := rows[e.name]
			rows[e.name] = row{append(r.ns, s.ns), append(r.cpu, s.cpu), append(r.bytes, s.bytes), append(r.allocs, s.allocs)}
		}
	}
	bare := rows["bare"]
	for _, e := range entries {
		r := rows[e.name]
		t.rows = append(t.rows, []string{
			e.name, nanoseconds(median(r.ns)), times(ratios(r.ns, bare.ns)), times(ratios(r.cpu, bare.cpu)), size(median(r.bytes)),
			fmt.Sprintf("%.0f", median(r.allocs)), fmt.Sprintf("%+.0f", added(rows, e.name)),
		})
	}
	if o.claim != nil {
		b.claims = append(b.claims, o.claim(rows)...)
	}
	return t, nil
}

// added is how many allocations a contender adds to bare, in whole numbers: the runtime's
// own, of which there is one in some thousand operations, are not its.
func added(rows map[string]row, name string) float64 {
	return math.Round(median(rows[name].allocs)-median(rows["bare"].allocs)) + 0 // never -0
}

// noFailures is for what succeeds at once: the defaults stay.
var noFailures = config{retries: 3, base: 100 * time.Millisecond, limit: time.Second, jitter: true, key: true}

func gets(rt http.RoundTripper) func(int) error {
	req := newRequest(http.MethodGet, "http://example.com/path", nil)
	return func(n int) error {
		for range n {
			if err := once(rt, req); err != nil {
				return err
			}
		}
		return nil
	}
}

// posts makes n requests of a kibibyte, each anew.
func posts(rt http.RoundTripper, header http.Header) func(int) error {
	return func(n int) error {
		for range n {
			req := newRequest(http.MethodPost, "http://example.com/path", bytes.NewReader(kibibyte))
			maps.Copy(req.Header, header)
			if err := once(rt, req); err != nil {
				return err
			}
		}
		return nil
	}
}

var (
	octets = http.Header{"Content-Type": {"application/octet-stream"}}
	keyed  = http.Header{"Content-Type": {"application/octet-stream"}, "Idempotency-Key": {"8e03978e-40d5-43dd-bc93-6894a57f9324"}}
)

// byHand is the least that adds a key without changing the caller's request.
var byHand = contender{
	name: "bare, a key added by hand",
	how:  "`req.Clone`, and a UUID by google/uuid in its header: what adding a key costs, whoever does it.",
	new: func(base http.RoundTripper, _ config) http.RoundTripper {
		return roundTrip(func(req *http.Request) (*http.Response, error) {
			req = req.Clone(req.Context())
			req.Header.Set("Idempotency-Key", uuid.NewString())
			return base.RoundTrip(req)
		})
	},
}

// breakers are the contenders that have a breaker which is off unless asked for.
func breakers() []contender {
	var all []contender
	for _, c := range contenders {
		if c.name == "heimdall" || c.name == "resty" {
			plain := c.new
			c.name += " + breaker"
			c.new = func(base http.RoundTripper, cfg config) http.RoundTripper {
				cfg.breaker = &idle
				return plain(base, cfg)
			}
			all = append(all, c)
		}
	}
	return all
}

func zipf(rt http.RoundTripper, from int) func(int) error {
	requests, order := hostRequests(), hostOrder()
	return func(n int) error {
		for range n {
			req := *requests[order[from%len(order)]] // goroutines share them
			from++
			if err := once(rt, &req); err != nil {
				return err
			}
		}
		return nil
	}
}

// hostsConfig asks for a breaker that remembers all hosts.
var hostsConfig = config{retries: 3, base: time.Millisecond, limit: time.Second, breaker: &breaker{failures: 5, cooldown: 10 * time.Second, hosts: manyHosts}}

// visit sends one request to each host.
func visit(rt http.RoundTripper) error {
	for _, req := range hostRequests() {
		r := *req // contenders share them
		if err := once(rt, &r); err != nil {
			return err
		}
	}
	return nil
}

func needsBreaker(c contender) string {
	if c.name != "bare" && !c.has(offersBreaker) {
		return "not offered"
	}
	return ""
}

var operations = []operation{
	{
		name:  "GET that succeeds",
		doc:   "One goroutine over a stub: what is added when nothing goes wrong.",
		loop:  func(c contender) func(int) error { return gets(c.new(stub, noFailures)) },
		extra: breakers(),
		claim: func(rows map[string]row) []claim {
			return []claim{atMost("allocations added to a GET that succeeds", added(rows, "retrip"), 0)}
		},
	},
	{
		name: "GET that succeeds, 64 goroutines",
		doc:  "The same through one client; the time is wall time over all requests.",
		loop: func(c contender) func(int) error {
			rt := c.new(stub, noFailures)
			return spread(64, func(int) func(int) error { return gets(rt) })
		},
		claim: func(rows map[string]row) []claim {
			return []claim{atMost("allocations added to a GET among 64 goroutines", added(rows, "retrip"), 0)}
		},
	},
	{
		name:  "POST of 1 KiB",
		doc:   "Each request is made anew. Only retrip adds an idempotency key, which takes a copy of the request and of its header.",
		loop:  func(c contender) func(int) error { return posts(c.new(stub, noFailures), octets) },
		extra: []contender{byHand},
	},
	{
		name: "POST of 1 KiB with a key of the caller's",
		doc:  "Nothing has to be added.",
		loop: func(c contender) func(int) error { return posts(c.new(stub, noFailures), keyed) },
	},
	{
		name: "Two failures, then success",
		doc:  "Two answers of 503 without a body, then 200; no pauses. Bare calls the base three times.",
		loop: func(c contender) func(int) error {
			rt := c.new(thirds(), config{retries: 3, failing: true})
			if c.has(offersRetries) {
				return gets(rt)
			}
			req := newRequest(http.MethodGet, "http://example.com/path", nil)
			return func(n int) error {
				for range n {
					for range 2 {
						resp, err := rt.RoundTrip(req)
						if err != nil {
							return err
						}
						_ = resp.Body.Close()
					}
					if err := once(rt, req); err != nil {
						return err
					}
				}
				return nil
			}
		},
		claim: func(rows map[string]row) []claim {
			return []claim{atMost("allocations for each retry", added(rows, "retrip")/2, 8)}
		},
	},
	{
		name: "10,000 hosts, breaker on",
		doc:  "GETs to hosts chosen by a Zipf law (exponent 1.1), all of them remembered where that can be set.",
		loop: func(c contender) func(int) error { return zipf(c.new(stub, hostsConfig), 0) },
		skip: needsBreaker,
	},
	{
		name: "10,000 hosts, breaker on, 64 goroutines",
		doc:  "The same through one client.",
		loop: func(c contender) func(int) error {
			rt := c.new(stub, hostsConfig)
			return spread(64, func(i int) func(int) error { return zipf(rt, 1021*i) })
		},
		skip: needsBreaker,
	},
}
