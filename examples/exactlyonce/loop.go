package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/retrip-go/retrip"
	"github.com/retrip-go/retrip/idempotent"
	"github.com/rs/zerolog"
)

// A result is what came of all payments.
type result struct {
	answered int   // clients that got their own payment's receipt
	attempts int64 // requests sent
	replays  int64 // answers that were stored ones
	rows     int   // in the ledger
	paid     int   // payments that are there
	took     time.Duration
	errs     []error // of clients
}

func (r result) doubles() int { return r.rows - r.paid }

// check says what is wrong. Without the middleware doubles are what is to be expected.
func (r result) check(on bool, payments int) error {
	err := errors.Join(r.errs...)
	if r.answered != payments || r.paid != payments {
		err = errors.Join(err, fmt.Errorf("of %d payments %d were answered and %d made", payments, r.answered, r.paid))
	}
	if on && r.doubles() != 0 {
		err = errors.Join(err, fmt.Errorf("%d payments were made twice", r.doubles()))
	}
	return err
}

// faults are what the network does to a share of the connections, all of which it does
// to the way back: the server has, or may have, done its work.
var faults = []string{
	`{"name": "nothing comes", "type": "limit_data", "stream": "downstream", "toxicity": 0.08, "attributes": {"bytes": 0}}`,
	`{"name": "half a header comes", "type": "limit_data", "stream": "downstream", "toxicity": 0.08, "attributes": {"bytes": 40}}`,
	`{"name": "reset meanwhile", "type": "reset_peer", "stream": "downstream", "toxicity": 0.08, "attributes": {"timeout": 3}}`,
}

// loop makes the payments on a server of its own.
func loop(ctx context.Context, on bool, payments, clients int) (r result, err error) {
	dir, err := os.MkdirTemp("", "exactlyonce")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	srv, err := newServer(ctx, dir, on)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, srv.close()) }()

	proxy := toxiproxy.NewProxy(toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop()), "network", "127.0.0.1:0", srv.addr)
	if err := proxy.Start(); err != nil {
		return r, err
	}
	defer proxy.Stop()
	for _, f := range faults {
		if _, err := proxy.Toxics.AddToxicJson(strings.NewReader(f)); err != nil {
			return r, err
		}
	}

	base := &http.Transport{DisableKeepAlives: true} // each attempt draws its fault
	c := &client{url: "http://" + proxy.Listen + "/payments"}
	c.http.Transport = retrip.New(counting{base, &c.attempts},
		retrip.WithMaxAttempts(20), retrip.WithBackoff(retrip.FullJitter(20*time.Millisecond, 500*time.Millisecond)),
		retrip.WithRetryQuota(nil), retrip.WithBreaker(nil)) // the network is that bad, and the server is well
	start := time.Now()
	r.answered, r.errs = c.payAll(ctx, srv, payments, clients)
	r.took = time.Since(start)
	r.attempts, r.replays = c.attempts.Load(), c.replays.Load()
	r.rows, r.paid, err = srv.count(ctx)
	return r, err
}

// counting is a base that counts attempts.
type counting struct {
	*http.Transport
	n *atomic.Int64
}

func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	c.n.Add(1)
	return c.Transport.RoundTrip(r)
}

// A client makes payments, and is safe for concurrent use.
type client struct {
	http     http.Client
	url      string
	attempts atomic.Int64
	replays  atomic.Int64
}

// payAll has so many clients make the payments between them, and returns how many got
// their receipt, and what went wrong with the others.
func (c *client) payAll(ctx context.Context, srv *server, payments, clients int) (answered int, errs []error) {
	var mu sync.Mutex
	var all sync.WaitGroup
	todo := make(chan string)
	for range clients {
		all.Go(func() {
			for payment := range todo {
				err := c.pay(ctx, srv, payment)
				mu.Lock()
				if err == nil {
					answered++
				} else {
					errs = append(errs, fmt.Errorf("%s: %w", payment, err))
				}
				mu.Unlock()
			}
		})
	}
	for i := range payments {
		todo <- fmt.Sprintf("payment-%04d", i)
	}
	close(todo)
	all.Wait()
	return answered, errs
}

// pay makes a payment, and looks whether the receipt is that of its row in the ledger.
// The key is retrip's: one for all attempts of this call.
func (c *client) pay(ctx context.Context, srv *server, payment string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, strings.NewReader(payment))
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.Header.Get(idempotent.ReplayedHeader) == "true" {
		c.replays.Add(1)
	}
	if resp.StatusCode != http.StatusCreated {
		return fmt.Errorf("the answer is %s", resp.Status)
	}
	var r receipt
	if err := json.NewDecoder(resp.Body).Decode(&r); err != nil {
		return err
	}
	return srv.verify(ctx, payment, r)
}
