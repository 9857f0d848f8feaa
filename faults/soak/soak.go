package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/metrics"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/retrip-go/retrip"
)

// A soak is one run.
type soak struct {
	config
	log       *log.Logger
	grace     time.Duration // from the end of a call to its check
	sites     []*site
	workers   []*worker
	moves     map[string]*moves
	quota     retrip.Quota
	transport *retrip.Transport
	client    *http.Client

	goroutines0 int       // before anything began
	began       time.Time // of the load
	took        time.Duration
	heap        []uint64 // live bytes at each tenth of the load

	over      atomic.Bool  // the load is over and its connections are closed
	late      atomic.Int64 // hooks that were called all the same
	leftAlive int          // goroutines
	leftOpen  int          // connections
	bodies    atomic.Int64 // response bodies of the base that are open
	strays    int          // calls that reached a server after their check

	mu    sync.Mutex
	wrong []string // what did not hold
	calls int      // for which something did not hold
}

func newSoak(c config, stderr io.Writer) *soak {
	return &soak{
		config: c, log: log.New(stderr, "", log.Ltime|log.Lmicroseconds), moves: make(map[string]*moves),
		grace: min(2*time.Second, c.duration/10), quota: retrip.DefaultQuota(),
	}
}

// debugf logs what only -v tells.
func (s *soak) debugf(format string, args ...any) {
	if s.verbose {
		s.log.Printf(format, args...)
	}
}

// complain notes something that does not hold.
func (s *soak) complain(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrong = append(s.wrong, fmt.Errorf(format, args...).Error())
}

// complainOfACall does so for a single call. Of these there could be many.
func (s *soak) complainOfACall(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls++; s.calls <= 100 {
		s.wrong = append(s.wrong, err.Error())
	}
}

// open starts the servers and makes the client.
func (s *soak) open() error {
	s.goroutines0 = runtime.NumGoroutine()
	// Only for its certificate, which is good for 127.0.0.1.
	secure := httptest.NewUnstartedServer(nil)
	secure.StartTLS()
	secure.Close()
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	for i := range s.config.hosts {
		var conf *tls.Config
		if i%5 == 4 {
			conf = &tls.Config{Certificates: secure.TLS.Certificates}
		}
		host := newSite(s.seed, uint64(i), conf)
		if err := host.open(); err != nil {
			return err
		}
		s.sites = append(s.sites, host)
		s.moves[host.name] = &moves{}
	}
	var base http.RoundTripper = &http.Transport{
		TLSClientConfig:     &tls.Config{RootCAs: roots},
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: s.goroutines,
	}
	if s.below != nil {
		base = s.below(base)
	}
	base = &openBodies{base: base, n: &s.bodies}
	// Default quota and breaker, in a hurry.
	breaker := retrip.DefaultBreaker()
	breaker.Cooldowns = []time.Duration{200 * time.Millisecond, 500 * time.Millisecond}
	s.transport = retrip.New(base, append([]retrip.Option{
		retrip.WithBackoff(retrip.FullJitter(2*time.Millisecond, 50*time.Millisecond)),
		retrip.WithBreaker(&breaker),
		retrip.WithAttemptTimeout(attemptTimeout),
		retrip.WithMaxBody(maxBody),
		retrip.WithTrace(s.trace()),
	}, s.options...)...)
	s.client = &http.Client{Transport: s.transport}
	if s.above != nil {
		s.client.Transport = s.above(s.transport)
	}
	return nil
}

// load lets the callers loose until the time is over, or ctx.
func (s *soak) load(ctx context.Context) {
	s.began = time.Now()
	weather, clear := context.WithCancel(context.Background())
	calls, stop := context.WithCancel(ctx)
	defer stop()
	var skies, callers sync.WaitGroup
	for i, host := range s.sites {
		skies.Go(func() { host.change(weather, rand.New(rand.NewPCG(s.seed, uint64(1000+i))), s.debugf) })
	}
	for i := range s.goroutines {
		w := &worker{
			soak: s, number: i, random: rand.New(rand.NewPCG(s.seed, uint64(10_000+i))),
			byWeather: make(map[string]*count), byKind: make(map[string]*count), byHost: make(map[string]*count),
		}
		s.workers = append(s.workers, w)
		callers.Go(func() { w.run(calls) })
	}
	for tenth := range 10 {
		sleep(ctx, time.Until(s.began.Add(s.duration*time.Duration(tenth+1)/10)))
		if ctx.Err() != nil {
			break
		}
		s.heap = append(s.heap, min(live(), live(), live())) // what requests under way hold comes and goes
		s.printProgress()
	}
	stop()
	callers.Wait()
	s.took = time.Since(s.began)
	clear()
	skies.Wait()
}

// live returns how many bytes of the heap are in use, a little later. What the race detector keeps for
// itself is not among them.
func live() uint64 {
	time.Sleep(20 * time.Millisecond)
	runtime.GC()
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

func (s *soak) started() (n int64) {
	for _, w := range s.workers {
		n += w.started.Load()
	}
	return n
}

func (s *soak) sum(of func(*site) int) (n int) {
	for _, host := range s.sites {
		n += of(host)
	}
	return n
}

func (s *soak) connections() int { return s.sum((*site).connections) }

func (s *soak) arrivals() int {
	return s.sum(func(h *site) int { return int(h.arrivals.Load()) })
}

// rest waits until the connections are closed, and then as long as a pause or an
// attempt could last. No timer can be counted, but one that still has something to do
// would do it now: go on with a request, and so call a hook or reach a server. One that
// does nothing keeps memory, which the heap tells.
func (s *soak) rest() {
	if !s.eventually(func() bool {
		// Again and again, since a dial that was given up may still bring a connection.
		s.client.CloseIdleConnections()
		return s.connections() == 0
	}) {
		s.leftOpen = s.connections()
		s.complain("%d connections are left", s.leftOpen)
	}
	before := s.arrivals()
	s.over.Store(true)
	time.Sleep(1100*time.Millisecond + attemptTimeout) // Retry-After 1 with its jitter, and an attempt
	if n := s.arrivals() - before; n > 0 {
		s.complain("%d requests reached a server after the end", n)
	}
	if n := s.late.Load(); n > 0 {
		s.complain("%d hooks were called after the end", n)
	}
}

// close ends the servers, and looks for what is left.
func (s *soak) close() {
	for _, host := range s.sites {
		if err := host.close(); err != nil {
			s.complain("%w", err)
		}
	}
	if !s.eventually(func() bool { return runtime.NumGoroutine() <= s.goroutines0 }) {
		s.leftAlive = runtime.NumGoroutine() - s.goroutines0
		s.complain("%d goroutines are left", s.leftAlive)
		buf := make([]byte, 64<<10)
		s.log.Printf("goroutines that are left:\n\n%s\n", buf[:runtime.Stack(buf, true)])
	}
}

func (s *soak) eventually(ok func() bool) bool {
	for end := time.Now().Add(s.patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// audit compares what callers, hooks, servers and the Transport have counted.
func (s *soak) audit() {
	for _, w := range s.workers {
		w.check(time.Now())
	}
	s.strays = s.sum(func(h *site) int { return h.Len() })

	hosts := s.merge(func(w *worker) map[string]*count { return w.byHost })
	all := total(hosts)
	if n := s.started(); int64(all.requests) != n || int64(all.accounted()) != n {
		s.complain("%d requests were started, %d ended, %d with an answer or an honest error", n, all.requests, all.accounted())
	}
	if n := s.bodies.Load(); n != 0 {
		s.complain("%d response bodies of the base were never closed", n)
	}
	s.auditHosts(hosts)
	if err := s.auditHeap(); err != nil {
		s.complain("%w", err)
	}
}

func (s *soak) auditHosts(hosts map[string]*count) {
	stats := maps.Collect(s.transport.Hosts())
	var all retrip.HostStats
	for name, c := range hosts {
		h := stats[name]
		all.Requests += h.Requests
		all.Attempts += h.Attempts
		all.FirstTry += h.FirstTry
		all.Recovered += h.Recovered
		all.Refused += h.Refused
		s.auditStats(name, h, c)
		if most := c.allowance(s.quota, s.took); float64(c.paid) > most+1e-6 {
			s.complain("%s: %d retries were made that the quota has to pay for, which allows %.1f", name, c.paid, most)
		}
		if m := s.moves[name]; m.wrong > 0 || m.state != h.State {
			s.complain("%s: the breaker is %v and was last told to be %v; %d changes did not follow from the one before",
				name, h.State, m.state, m.wrong)
		}
	}
	opened := 0
	for _, m := range s.moves {
		opened += m.opened
	}
	if opened == 0 && s.took > 10*time.Second && len(s.sites) > 5 {
		s.complain("no breaker ever opened, in weather that opens many")
	}
	if len(stats) != len(hosts) {
		s.complain("Hosts tells of %d hosts, and there are %d", len(stats), len(hosts))
	}
	sum := total(hosts)
	s.auditStats("all hosts", all, &sum)
}

// auditStats compares what a Transport says of a host with what hooks and callers saw.
//
// A request that is over at once may have been so before it asked for its first
// attempt, which is when it counts, or after it, before there was a body to send. The
// hooks are told the same of both.
func (s *soak) auditStats(name string, h retrip.HostStats, c *count) {
	type counts struct{ attempts, firstTry, recovered, refused uint64 }
	told := counts{h.Attempts, h.FirstTry, h.Recovered, h.Refused}
	seen := counts{uint64(c.attempts), uint64(c.firstTry), uint64(c.recovered), uint64(c.refused)}
	if told != seen {
		s.complain("%s: Hosts tells of %+v, hooks and callers of %+v", name, told, seen)
	}
	if least := uint64(c.requests - c.unsent); h.Requests < least || h.Requests > uint64(c.requests) {
		s.complain("%s: Hosts tells of %d requests, and there were %d to %d", name, h.Requests, least, c.requests)
	}
}

// auditHeap compares the last third of the load with its second tenth. In the first one
// connections, pools and stacks still grow.
func (s *soak) auditHeap() error {
	if len(s.heap) < 10 {
		return nil // it was interrupted
	}
	if early, end := s.steady(); float64(end) > 1.25*float64(early)+4<<20 {
		return errors.New("the heap grew")
	}
	return nil
}

// steady returns the live heap early in the load and at its end.
func (s *soak) steady() (early, end uint64) {
	last := slices.Sorted(slices.Values(s.heap[7:]))
	return s.heap[1], last[len(last)/2]
}

// merge adds up what the workers have counted.
func (s *soak) merge(of func(*worker) map[string]*count) map[string]*count {
	all := make(map[string]*count)
	for _, w := range s.workers {
		for name, c := range of(w) {
			if all[name] == nil {
				all[name] = &count{}
			}
			all[name].add(*c)
		}
	}
	return all
}

func total(rows map[string]*count) (sum count) {
	for _, c := range rows {
		sum.add(*c)
	}
	return sum
}

// openBodies counts the response bodies of a base that are not closed yet.
type openBodies struct {
	base http.RoundTripper
	n    *atomic.Int64
}

func (o *openBodies) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := o.base.RoundTrip(req)
	if err == nil && resp.Body != http.NoBody {
		o.n.Add(1)
		resp.Body = &openBody{ReadCloser: resp.Body, n: o.n}
	}
	return resp, err
}

func (o *openBodies) CloseIdleConnections() {
	if c, ok := o.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

type openBody struct {
	io.ReadCloser
	n    *atomic.Int64
	once sync.Once
}

func (b *openBody) Close() error {
	b.once.Do(func() { b.n.Add(-1) })
	return b.ReadCloser.Close()
}
