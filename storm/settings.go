package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/retrip-go/retrip"
)

// Settings are what the command line says. Of a scenario's numbers zero stands for its
// own.
type settings struct {
	list     bool
	scenario string
	seed     uint64
	out      string

	clients  int
	rate     float64
	capacity float64
	failing  float64
	outage   time.Duration
	layers   int

	attempts  int
	pause     pause
	quota     string
	breaker   string
	cooldowns string
	timeout   time.Duration
	budget    time.Duration

	given map[string]bool // flags that were set
}

// parse reads the command line. Its error says what makes no sense; flag.ErrHelp is
// one.
func parse(args []string, usage io.Writer) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("storm", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	s.define(flags)
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(usage, "Usage: go run -C storm . [flags]\n\nRuns simulations of retrip in virtual time, and writes their pictures to storm-report/.\n\n")
			flags.SetOutput(usage)
			flags.PrintDefaults()
		}
		return s, err
	}
	if flags.NArg() > 0 {
		return s, fmt.Errorf("%q is no flag", flags.Arg(0))
	}
	s.given = map[string]bool{}
	flags.Visit(func(f *flag.Flag) { s.given[f.Name] = true })
	return s, s.check()
}

func (s *settings) define(f *flag.FlagSet) {
	f.BoolVar(&s.list, "list", false, "explain the scenarios and stop")
	f.StringVar(&s.scenario, "scenario", "", "run only this one, with the settings below; default: all, with their own")
	f.Uint64Var(&s.seed, "seed", 1, "of all chance: the same seed gives the same numbers")
	f.StringVar(&s.out, "o", "storm-report", "directory for the pictures and the HTML report; empty: none")
	f.IntVar(&s.clients, "clients", 0, "clients, each with a Transport of its own")
	f.Float64Var(&s.rate, "rate", 0, "requests a second")
	f.Float64Var(&s.capacity, "capacity", 0, "requests a second that the server can serve")
	f.Float64Var(&s.failing, "failing", 0, "share of attempts that fail, 0 to 1")
	f.DurationVar(&s.outage, "outage", 0, "how long the server is away")
	f.IntVar(&s.layers, "layers", 0, "services above each other")
	f.IntVar(&s.attempts, "attempts", 0, "attempts of a request, the first included")
	f.StringVar(&s.pause.kind, "backoff", "", "of your client: "+kinds())
	f.DurationVar(&s.pause.base, "base", 0, "first pause of the backoff")
	f.DurationVar(&s.pause.limit, "cap", 0, "longest pause of the backoff")
	f.StringVar(&s.quota, "quota", "", "default, off, or capacity,initial,earn,reserve as in 20,10,0.1,0.1")
	f.StringVar(&s.breaker, "breaker", "", "default, off, or how many failures in a row open it")
	f.StringVar(&s.cooldowns, "cooldowns", "", "of the breaker, as in 30s,1m,2m")
	f.DurationVar(&s.timeout, "timeout", 0, "of one attempt")
	f.DurationVar(&s.budget, "budget", 0, "of a request, to the start of its last attempt")
}

// general are the flags that every scenario heeds.
var general = []string{"list", "scenario", "seed", "o"}

func (s *settings) check() error {
	if s.scenario == "" {
		if s.plain() {
			return nil
		}
		return errors.New("settings of one's own need a -scenario, which they are for")
	}
	i := slices.IndexFunc(scenarios(), func(sc scenario) bool { return sc.name == s.scenario })
	if i < 0 {
		return fmt.Errorf("-scenario %s: there is no such; there are %s", s.scenario, names())
	}
	sc := scenarios()[i]
	heeds := slices.Concat(general, sc.heeds)
	for name := range s.given {
		if !slices.Contains(heeds, name) {
			return fmt.Errorf("-%s means nothing to -scenario %s, which heeds -%s", name, s.scenario, strings.Join(heeds, ", -"))
		}
	}
	if err := s.checkNumbers(sc); err != nil {
		return err
	}
	_, err := s.own(shipped())
	return err
}

// plain reports whether a scenario is run with its own settings.
func (s *settings) plain() bool {
	for name := range s.given {
		if !slices.Contains(general, name) {
			return false
		}
	}
	return true
}

func names() string {
	var all []string
	for _, sc := range scenarios() {
		all = append(all, sc.name)
	}
	return strings.Join(all, ", ")
}

// checkNumbers refuses what makes no sense, and what would run for hours.
func (s *settings) checkNumbers(sc scenario) error {
	if err := cmp.Or(
		bounds(s, "clients", s.clients, 1, sc.crowd),
		bounds(s, "rate", s.rate, 0.001, 20_000),
		bounds(s, "capacity", s.capacity, 1, 20_000),
		bounds(s, "failing", s.failing, 0, 1),
		bounds(s, "outage", s.outage, time.Second, 24*time.Hour),
		bounds(s, "layers", s.layers, 1, 6),
		bounds(s, "attempts", s.attempts, 1, 100),
		bounds(s, "timeout", s.timeout, time.Millisecond, time.Hour),
		bounds(s, "budget", s.budget, 0, 24*time.Hour),
	); err != nil {
		return err
	}
	if n := s.rate * max(s.outage, sc.lasts).Seconds(); n > 5e6 {
		return fmt.Errorf("-rate %v: %.0f million requests are too many", s.rate, n/1e6)
	}
	if n := math.Pow(float64(s.attempts), float64(s.layers)); n > 10_000 {
		return fmt.Errorf("-attempts %d -layers %d: %.0f attempts for one request are too many", s.attempts, s.layers, n)
	}
	return nil
}

// bounds refuses a flag that was given a value out of bounds.
func bounds[T cmp.Ordered](s *settings, flag string, value, low, top T) error {
	if s.given[flag] && !(value >= low && value <= top) { // nor is NaN between them
		return fmt.Errorf("-%s %v: want %v to %v", flag, value, low, top)
	}
	return nil
}

// own returns c with what the command line says of the client.
func (s *settings) own(c client) (client, error) {
	c.name = "yours"
	if s.given["attempts"] {
		c.attempts = s.attempts
	}
	if s.given["timeout"] {
		c.timeout = s.timeout
	}
	if s.given["budget"] {
		c.budget = s.budget
	}
	p := c.pause
	if s.given["backoff"] {
		p.kind = s.pause.kind
	}
	if s.given["base"] {
		p.base, p.limit = s.pause.base, max(p.limit, s.pause.base)
	}
	if s.given["cap"] {
		p.limit = s.pause.limit
	}
	var errPause, errQuota, errBreaker error
	c.pause, errPause = p.checked()
	c.quota, errQuota = s.ownQuota(c.quota)
	c.breaker, errBreaker = s.ownBreaker(c.breaker)
	return c, errors.Join(errPause, errQuota, errBreaker)
}

// mine returns the client of one's own in the place of a scenario's clients, if the
// command line says anything of it, under the first of them for comparison.
func (s *settings) mine(base client, all []client) []client {
	if !slices.ContainsFunc(clientFlags, func(name string) bool { return s.given[name] }) {
		return all
	}
	own, _ := s.own(base) // was checked
	return []client{all[0], own}
}

func (s *settings) ownQuota(q *retrip.Quota) (*retrip.Quota, error) {
	switch s.quota {
	case "":
		return q, nil
	case "off":
		return nil, nil
	case "default":
		d := retrip.DefaultQuota()
		return &d, nil
	}
	fields := strings.Split(s.quota, ",")
	if len(fields) != 4 {
		return nil, fmt.Errorf("-quota %s: want default, off, or capacity,initial,earn,reserve", s.quota)
	}
	var n [4]float64
	for i, f := range fields {
		v, err := strconv.ParseFloat(f, 64)
		if err != nil || !(v >= 0 && v <= 1e6) {
			return nil, fmt.Errorf("-quota %s: %q is not a number between 0 and a million", s.quota, f)
		}
		n[i] = v
	}
	if n[1] > n[0] {
		return nil, fmt.Errorf("-quota %s: initial %v is over capacity %v", s.quota, n[1], n[0])
	}
	return &retrip.Quota{Capacity: n[0], Initial: n[1], Earn: n[2], Reserve: n[3]}, nil
}

func (s *settings) ownBreaker(b *retrip.Breaker) (*retrip.Breaker, error) {
	d := retrip.DefaultBreaker()
	switch s.breaker {
	case "":
	case "off":
		b = nil
	case "default":
		b = &d
	default:
		n, err := strconv.Atoi(s.breaker)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("-breaker %s: want default, off, or a number of failures", s.breaker)
		}
		d.Failures = n
		b = &d
	}
	if s.cooldowns == "" {
		return b, nil
	}
	if b == nil {
		return nil, fmt.Errorf("-cooldowns %s: the breaker is off", s.cooldowns)
	}
	own := *b
	own.Cooldowns = nil
	for _, f := range strings.Split(s.cooldowns, ",") {
		cooldown, err := time.ParseDuration(f)
		if err != nil || cooldown <= 0 {
			return nil, fmt.Errorf("-cooldowns %s: %q is not a time, as 30s is", s.cooldowns, f)
		}
		own.Cooldowns = append(own.Cooldowns, cooldown)
	}
	return &own, nil
}
