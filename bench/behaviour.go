package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// A behaviour is a row of the matrix: one question with one right answer.
type behaviour struct {
	group, name string
	rule        string // where it is written
	right       string
	needs       offers
	alone       bool // counts what others would disturb
	ask         func(p *probe) (observed string, right bool)
}

// A behaviourResult is a cell.
type behaviourResult struct {
	verdict  string // see below
	observed string
}

const (
	passes     = "yes"
	fails      = "no"
	notOffered = "–"
)

type behaviourOptions struct {
	run    *regexp.Regexp
	strict bool // an error if retrip fails a row
}

// behaviourTime ends a row that hangs.
const behaviourTime = 15 * time.Second

func behaviourRows() []behaviour {
	return slices.Concat(behavioursOfContract, behavioursOfSafety, behavioursOfRetryAfter, behavioursOfTime,
		behavioursOfLeaks, behavioursOfProtocol, behavioursOfBreaker, behavioursOfSecrets, behavioursOfRaces)
}

// behaviours prints the matrix.
func behaviours(w io.Writer, o behaviourOptions) error {
	var rows []behaviour
	for _, b := range behaviourRows() {
		if o.run == nil || o.run.MatchString(b.name) {
			rows = append(rows, b)
		}
	}
	if slices.ContainsFunc(rows, func(b behaviour) bool { return b.group == "Races" }) {
		_, _ = raceProgram() // it may take longer than a row has
	}
	results := make([]map[string]behaviourResult, len(rows))
	var mu sync.Mutex
	var all sync.WaitGroup
	slots := make(chan struct{}, 16)
	for i, b := range rows {
		results[i] = make(map[string]behaviourResult)
		for _, c := range contenders {
			if b.alone {
				continue
			}
			all.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				r := b.of(c)
				mu.Lock()
				defer mu.Unlock()
				results[i][c.name] = r
			})
		}
	}
	all.Wait()
	for i, b := range rows {
		for _, c := range contenders {
			if b.alone {
				results[i][c.name] = b.of(c)
			}
		}
	}
	if program, err := raceProgram(); err == nil {
		_ = os.RemoveAll(filepath.Dir(program))
	}
	return writeBehaviours(w, rows, results, o.strict)
}

// of asks one contender.
func (b behaviour) of(c contender) behaviourResult {
	if !c.has(b.needs) {
		return behaviourResult{notOffered, "not offered"}
	}
	answered := make(chan behaviourResult, 1)
	go func() {
		defer func() {
			if v := recover(); v != nil {
				answered <- behaviourResult{fails, fmt.Sprintf("panic: %v", v)}
			}
		}()
		p := &probe{contender: c}
		defer p.end()
		observed, right := b.ask(p)
		verdict := fails
		switch {
		case strings.HasPrefix(observed, notMeasured):
			verdict = notOffered
		case right:
			verdict = passes
		}
		answered <- behaviourResult{verdict, observed}
	}()
	select {
	case r := <-answered:
		return r
	case <-time.After(behaviourTime):
		return behaviourResult{fails, fmt.Sprintf("hung: no end within %v", behaviourTime)}
	}
}

func writeBehaviours(w io.Writer, rows []behaviour, results []map[string]behaviourResult, strict bool) error {
	fmt.Fprintf(w, "# Behaviours\n\nWhat each contender does where the rules have one right answer: %d rows, asked by `go run -C bench . -behaviour`. "+
		"\"%s\" is what a contender has no option for: that is no failure. The columns are set up as above; bare makes one attempt, "+
		"and takes part where that makes sense.\n", len(rows), notOffered)
	head := []string{"behaviour", "right", "rule"}
	for _, c := range contenders {
		head = append(head, c.name)
	}
	rule := make([]string, len(head))
	for i := range rule {
		rule[i] = "---"
	}
	counts := make(map[string]map[string]int)
	var failures, ours []string
	group := ""
	for i, b := range rows {
		if b.group != group {
			group = b.group
			fmt.Fprintf(w, "\n## %s\n\n", group)
			writeRow(w, slices.Clone(head))
			writeRow(w, slices.Clone(rule))
		}
		cells := []string{b.name, b.right, b.rule}
		for _, c := range contenders {
			r := results[i][c.name]
			if counts[c.name] == nil {
				counts[c.name] = make(map[string]int)
			}
			counts[c.name][r.verdict]++
			cell := r.verdict
			if r.verdict != notOffered || strings.HasPrefix(r.observed, notMeasured) {
				cell += ": " + shorten(r.observed, 40)
			}
			cells = append(cells, cell)
			if r.verdict == fails {
				line := fmt.Sprintf("%s, %s: %s", c.name, b.name, shorten(r.observed, 300))
				failures = append(failures, line)
				if strings.HasPrefix(c.name, "retrip") {
					ours = append(ours, line)
				}
			}
		}
		writeRow(w, cells)
	}
	fmt.Fprint(w, "\n## Sum\n\n")
	writeRow(w, []string{"contender", "right", "wrong", "not offered"})
	writeRow(w, []string{"---", "---:", "---:", "---:"})
	for _, c := range contenders {
		n := counts[c.name]
		writeRow(w, []string{c.name, fmt.Sprint(n[passes]), fmt.Sprint(n[fails]), fmt.Sprint(n[notOffered])})
	}
	if len(failures) > 0 {
		fmt.Fprint(w, "\nWhat was seen where it is wrong:\n\n")
		for _, f := range failures {
			fmt.Fprintf(w, "- %s\n", f)
		}
	}
	if strict && len(ours) > 0 {
		return fmt.Errorf("retrip fails:\n%s", strings.Join(ours, "\n"))
	}
	return nil
}

func shorten(s string, n int) string {
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "?")), " ")
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// A probe is what a row has to ask with.
type probe struct {
	contender
	ends []func()
}

func (p *probe) end() {
	for _, end := range slices.Backward(p.ends) {
		end()
	}
}

// later is for what must be closed after the row.
func (p *probe) later(f func()) { p.ends = append(p.ends, f) }

// wrap sets the contender up over a base: three retries with pauses of a millisecond.
func (p *probe) wrap(base http.RoundTripper, change ...func(*config)) http.RoundTripper {
	c := config{retries: 3, base: time.Millisecond, limit: 2 * time.Millisecond, failing: true}
	for _, f := range change {
		f(&c)
	}
	return p.new(base, c)
}

// retrying says of a row about retries that bare has nothing to do with it.
const retrying = offersRetries

// A script is a base that plays one step an attempt; the last one repeats.
type script struct {
	steps []step

	mu   sync.Mutex
	seen []attempt
}

type step func(*http.Request) (*http.Response, error)

// An attempt is one call of the base, with the body it got.
type attempt struct {
	at     time.Time
	req    *http.Request
	header http.Header
	body   string
	err    error // of reading the body
}

func play(steps ...step) *script { return &script{steps: steps} }

func (s *script) RoundTrip(req *http.Request) (*http.Response, error) {
	a := attempt{at: time.Now(), req: req, header: req.Header.Clone()}
	if req.Body != nil {
		var b []byte
		b, a.err = io.ReadAll(req.Body)
		a.body = string(b)
		_ = req.Body.Close()
	}
	s.mu.Lock()
	s.seen = append(s.seen, a)
	next := s.steps[min(len(s.seen), len(s.steps))-1]
	s.mu.Unlock()
	if a.err != nil {
		return nil, a.err
	}
	return next(req)
}

func (s *script) attempts() []attempt {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// n says how many attempts there were.
func (s *script) n() string { return attemptCount(len(s.attempts())) }

func attemptCount(n int) string {
	if n == 1 {
		return "1 attempt"
	}
	return fmt.Sprintf("%d attempts", n)
}

// gap is the time between the first two attempts; 0 if there were not two.
func (s *script) gap() time.Duration {
	all := s.attempts()
	if len(all) < 2 {
		return 0
	}
	return all[1].at.Sub(all[0].at)
}

// reply is a response with a body; fields are name, value, name, value.
func reply(status int, body string, fields ...string) step {
	return func(req *http.Request) (*http.Response, error) {
		resp := answer(req, status)
		for i := 0; i < len(fields); i += 2 {
			resp.Header.Add(fields[i], fields[i+1])
		}
		resp.Body, resp.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		return resp, nil
	}
}

func fail(err error) step { return func(*http.Request) (*http.Response, error) { return nil, err } }

// hang waits for the attempt's end, as net/http does.
func hang(req *http.Request) (*http.Response, error) {
	select {
	case <-req.Context().Done():
		return nil, context.Cause(req.Context())
	case <-cancelled(req):
		return nil, errors.New("request canceled")
	}
}

// cancelled is how http.Client still tells its transports of a timeout.
func cancelled(req *http.Request) <-chan struct{} {
	return req.Cancel //lint:ignore SA1019 it does
}

// A tracked body knows whether it was closed, and whether it was read after that.
type tracked struct {
	io.Reader
	mu     sync.Mutex
	closed int
	late   bool
}

func track(s string) *tracked { return &tracked{Reader: strings.NewReader(s)} }

func (t *tracked) Read(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed > 0 {
		t.late = true
		return 0, errors.New("read after close")
	}
	return t.Reader.Read(p)
}

func (t *tracked) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed++
	return nil
}

func (t *tracked) isClosed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closed > 0
}

// outcome says what a round trip returned, and reads the response.
func outcome(resp *http.Response, err error) string {
	if err != nil {
		return "error: " + err.Error()
	}
	b, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		return fmt.Sprintf("%d, and reading: %v", resp.StatusCode, err)
	}
	return fmt.Sprintf("%d with %d bytes", resp.StatusCode, len(b))
}

func status(resp *http.Response) int {
	if resp == nil {
		return 0
	}
	return resp.StatusCode
}

// put makes a request with a body that can be read only once.
func put(body io.Reader) *http.Request {
	req := newRequest(http.MethodPut, "http://example.com/path", body)
	req.ContentLength = -1
	return req
}

func get(url string) *http.Request { return newRequest(http.MethodGet, url, nil) }

const somewhere = "http://example.com/path"
