// Package deliver sends webhooks that must not be lost. Each event is on disk before
// Send returns; workers send it until the destination has taken it or its schedule
// is used up; then it is a dead letter, with the story of every attempt, which can be
// looked at and replayed.
//
//	client, err := deliver.OpenSQLite("webhooks.db")
//	err = client.Destinations().Put(ctx, deliver.Destination{ID: "acme", URL: "https://acme.example/hook"})
//	receipt, err := client.Send(ctx, deliver.Event{To: []string{"acme"}, Payload: body})
//	err = client.Start(ctx) // here or in another process
//
// Deliveries are made at least once. Every attempt and every replay of an event
// carries the same id, as webhook-id and as Idempotency-Key: a consumer that
// remembers ids gets each event once.
//
// The queue is River, on a SQLite file or on PostgreSQL. The signature is that of
// Standard Webhooks.
package deliver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver"
)

// The engines.
const (
	sqlite   = "sqlite"
	postgres = "postgres"
)

// ErrNotFound is matched by the errors about what is not there.
var ErrNotFound = errors.New("not found")

// ErrNotMigrated is matched by the error of opening a database that is not up to date,
// WithoutMigration.
var ErrNotMigrated = errors.New("the database is not up to date")

// A Client sends events, works them, and looks after what failed. T is the type of
// its database's transactions. It is safe for concurrent use.
type Client[T any] struct {
	*core
	engine *engine[T]
}

// A core is a Client but for the type of its transactions.
type core struct {
	config config
	store  store
	engine string
	http   *retrip.Transport
	meter  *meter
	gates  gates

	mu      sync.Mutex
	stop    context.CancelFunc // of the background work; nil unless started
	stopped sync.WaitGroup
}

type config struct {
	workers   int
	schedules map[string]Schedule
	timeout   time.Duration
	transport http.RoundTripper
	observer  func(*retrip.Transport) // nil: none
	again     []retrip.CallOption
	dialing   dialing
	breaker   Breaker
	alert     Alert
	notifier  Notifier
	keep      time.Duration // delivered ones
	keepDead  time.Duration
	atOnce    int
	log       *slog.Logger
	poll      time.Duration
	rescue    time.Duration
	tick      time.Duration
	maxBody   int
	maxAge    time.Duration
	asIs      bool // the database is not migrated
}

// An Option sets something of a Client.
type Option func(*config)

// WithWorkers sets how many deliveries this process makes at once; the default is
// 100.
func WithWorkers(n int) Option {
	if n < 1 || n > river.QueueNumWorkersMax {
		panic(fmt.Sprintf("deliver: WithWorkers(%d): not between 1 and %d", n, river.QueueNumWorkersMax))
	}
	return func(c *config) { c.workers = n }
}

// WithSchedule sets the schedule of that name, for Destination.Schedule. The name ""
// is the one of destinations that name none; by default it is Doubling(10*time.Second,
// 30*time.Minute, 0.2, 12), about 2 h 12 min.
//
// How many attempts a delivery gets is settled when it is sent; the pauses are those
// of the process that works it.
func WithSchedule(name string, s Schedule) Option {
	if fault := s.fault(); fault != "" {
		panic(fmt.Sprintf("deliver: WithSchedule(%q): %s", name, fault))
	}
	return func(c *config) { c.schedules[name] = s }
}

// WithTimeout limits each attempt, the answer included; the default is 30 s.
func WithTimeout(d time.Duration) Option {
	if d <= 0 {
		panic(fmt.Sprintf("deliver: WithTimeout(%v): not positive", d))
	}
	return func(c *config) { c.timeout = d }
}

// WithTransport sets what sends the requests. It is then the caller's to see to it
// that no request goes where it must not: WithAllowedNetworks is not asked. nil is the
// default, an http.Transport that asks.
func WithTransport(rt http.RoundTripper) Option { return func(c *config) { c.transport = rt } }

// WithObserver has f called with the Transport that sends, once, before Open returns:
// for a page of statusz or a collector of retripprom. Its breaker and quota are off,
// since those of a destination are the database's.
func WithObserver(f func(*retrip.Transport)) Option { return func(c *config) { c.observer = f } }

// WithRetries makes each attempt a RoundTrip of retrip with these settings, such as
// two quick tries before the schedule's pause. By default it is sent once.
func WithRetries(opts ...retrip.CallOption) Option {
	return func(c *config) { c.again = opts }
}

// WithAtOnce sets how many deliveries to one destination a process makes at once; the
// default is 10. Others wait a second or two and leave their worker to the next
// destination.
func WithAtOnce(n int) Option {
	if n < 1 {
		panic(fmt.Sprintf("deliver: WithAtOnce(%d): less than 1", n))
	}
	return func(c *config) { c.atOnce = n }
}

// WithRetention sets how long deliveries and dead letters can be replayed before they
// are purged; the defaults are 3 and 30 days. Zero keeps them for ever.
func WithRetention(delivered, dead time.Duration) Option {
	if delivered < 0 || dead < 0 {
		panic(fmt.Sprintf("deliver: WithRetention(%v, %v): negative", delivered, dead))
	}
	return func(c *config) { c.keep, c.keepDead = delivered, dead }
}

// WithMaxAge sets after what time a delivery becomes a dead letter even if attempts are
// left: while its destination is paused it uses none up. It is looked at when an attempt
// is due. The default is 7 days; zero is no limit.
func WithMaxAge(d time.Duration) Option {
	if d < 0 {
		panic(fmt.Sprintf("deliver: WithMaxAge(%v): negative", d))
	}
	return func(c *config) { c.maxAge = d }
}

// WithMaxPayload limits the payload of an event; the default is 1 MiB.
func WithMaxPayload(bytes int) Option {
	if bytes < 1 {
		panic(fmt.Sprintf("deliver: WithMaxPayload(%d): less than 1", bytes))
	}
	return func(c *config) { c.maxBody = bytes }
}

// WithLogger sets where the queue's own troubles are logged, and each failure at debug
// level; the default is slog.Default. nil is no logging.
func WithLogger(l *slog.Logger) Option {
	if l == nil {
		l = quiet
	}
	return func(c *config) { c.log = l }
}

// WithPolling sets how often the database is asked for work that nothing announced:
// retries that are due, and on SQLite all work of other processes. The default is
// 250 ms.
func WithPolling(d time.Duration) Option {
	if d < time.Millisecond {
		panic(fmt.Sprintf("deliver: WithPolling(%v): less than 1ms", d))
	}
	return func(c *config) { c.poll = d }
}

// WithRescue sets after what time a delivery whose process died is given to another;
// the default is 90 s. It must be longer than any attempt.
func WithRescue(d time.Duration) Option {
	if d <= 0 {
		panic(fmt.Sprintf("deliver: WithRescue(%v): not positive", d))
	}
	return func(c *config) { c.rescue = d }
}

// WithoutMigration leaves the database as it is: opening one that is not up to date, or
// not one of this package's at all, fails with ErrNotMigrated. It is for tools that look
// at a database that somebody names.
func WithoutMigration() Option { return func(c *config) { c.asIs = true } }

// atLeastWarn leaves out what the queue says of each failure: it repeats answers, which
// are for the dead letters and their page.
type atLeastWarn struct{ slog.Handler }

func (h atLeastWarn) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn && h.Handler.Enabled(ctx, l)
}

func (h atLeastWarn) WithAttrs(attrs []slog.Attr) slog.Handler {
	return atLeastWarn{h.Handler.WithAttrs(attrs)}
}
func (h atLeastWarn) WithGroup(name string) slog.Handler {
	return atLeastWarn{h.Handler.WithGroup(name)}
}

// quiet is for what is not worth a line.
var quiet = slog.New(slog.DiscardHandler)

func open[T any](ctx context.Context, e *engine[T], writing, reading riverdriver.Driver[T], opts []Option) (*Client[T], error) {
	c := &core{
		config: config{
			workers:   100,
			schedules: map[string]Schedule{"": standard},
			timeout:   30 * time.Second,
			breaker:   DefaultBreaker(),
			alert:     DefaultAlert(),
			keep:      3 * 24 * time.Hour,
			keepDead:  30 * 24 * time.Hour,
			atOnce:    10,
			log:       slog.Default(),
			poll:      250 * time.Millisecond,
			rescue:    90 * time.Second,
			tick:      time.Second,
			maxBody:   1 << 20,
			maxAge:    7 * 24 * time.Hour,
		},
		store:  e,
		engine: e.name,
	}
	for _, o := range opts {
		o(&c.config)
	}
	if c.config.notifier == nil {
		c.config.notifier = LogNotifier(c.config.log)
	}
	if c.config.rescue <= c.config.timeout {
		return nil, errors.Join(fmt.Errorf("deliver: WithRescue(%v) must be longer than WithTimeout(%v)", c.config.rescue, c.config.timeout), e.close())
	}
	c.http = newTransport(&c.config)
	c.meter = newMeter(c)
	client := &Client[T]{core: c, engine: e}
	if err := client.connect(ctx, writing, reading); err != nil {
		return nil, errors.Join(err, e.close())
	}
	return client, nil
}

func (c *Client[T]) connect(ctx context.Context, writing, reading riverdriver.Driver[T]) error {
	var err error
	if c.config.asIs {
		err = upToDate(ctx, c.engine, reading)
	} else {
		err = migrate(ctx, c.engine, writing, reading)
	}
	if err != nil {
		return err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &worker{core: c.core})
	river.AddWorker(workers, &notices{core: c.core})
	if c.engine.look, err = river.NewClient(reading, &river.Config{Logger: quiet}); err != nil {
		return err
	}
	c.engine.work, err = river.NewClient(writing, &river.Config{
		Logger:  slog.New(atLeastWarn{c.config.log.Handler()}),
		Workers: workers,
		Queues: map[string]river.QueueConfig{
			river.QueueDefault: {MaxWorkers: c.config.workers},
			noticeQueue:        {MaxWorkers: 2},
		},
		FetchCooldown:        20 * time.Millisecond,
		FetchPollInterval:    max(c.config.poll, 20*time.Millisecond),
		JobTimeout:           c.config.timeout + 5*time.Second,
		RescueStuckJobsAfter: max(c.config.rescue, c.config.timeout+6*time.Second),
		// Nothing is deleted behind our back: see purge.
		CancelledJobRetentionPeriod: -1,
		CompletedJobRetentionPeriod: -1,
		DiscardedJobRetentionPeriod: -1,
	})
	return err
}

// Start works deliveries until Stop, or until ctx ends, which cuts off the attempts
// under way as a Stop whose ctx has ended does. After either there must be a Stop before
// the next Start.
func (c *Client[T]) Start(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop != nil {
		return errors.New("deliver: started already")
	}
	if err := c.engine.work.Start(ctx); err != nil {
		return err
	}
	ctx, c.stop = context.WithCancel(context.WithoutCancel(ctx))
	c.stopped.Go(func() { c.watch(ctx) })
	return nil
}

// Stop lets the attempts under way end, and starts no more. When ctx ends first they
// are cut off, and none of their attempts counts: they may have arrived, and are made again.
func (c *Client[T]) Stop(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop == nil {
		return nil
	}
	err := c.engine.work.Stop(ctx)
	if err != nil {
		hard, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		err = errors.Join(err, c.engine.work.StopAndCancel(hard))
	}
	c.stop()
	c.stopped.Wait()
	c.stop = nil
	return err
}

// Close stops at once, if need be, and closes the database.
func (c *Client[T]) Close() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = c.Stop(ctx)
	c.http.CloseIdleConnections()
	return c.engine.close()
}

// River is the queue itself, for what this package does not offer. Its job table also
// holds the deliveries: leave those alone.
func (c *Client[T]) River() *river.Client[T] { return c.engine.work }
