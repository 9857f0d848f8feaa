package faults_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/retrip-go/retrip/faults"
	"github.com/stretchr/testify/require"
)

// A breaking is a way for a connection to end.
type breaking struct {
	name  string
	up    bool // the request is cut, else the answer
	reset bool // by RST, else by FIN
}

var breakings = []breaking{
	{"RequestThatIsCut", true, false},
	{"RequestThatIsReset", true, true},
	{"AnswerThatIsCut", false, false},
	{"AnswerThatIsReset", false, true},
}

// at is the plan to break a connection after n bytes.
func (b breaking) at(n int64) *plan {
	if b.up {
		return &plan{up: n, down: whole, reset: b.reset}
	}
	return &plan{up: whole, down: n, reset: b.reset}
}

// A cable is a server behind relays, one for each call that is under way.
type cable struct {
	ledger faults.Ledger
	relays chan *relay
	wire   wire
}

func newCable(t *testing.T, w wire, wrap func(http.Handler) http.Handler) *cable {
	c := &cable{relays: make(chan *relay, 8), wire: w}
	addr := serve(t, w, wrap(&c.ledger))
	for range cap(c.relays) {
		c.relays <- newRelay(t, addr)
	}
	return c
}

// do makes a call whose first connection goes by the plan.
func (c *cable) do(t *testing.T, k kind, p *plan, id string) (faults.Outcome, error) {
	r := <-c.relays
	defer func() { c.relays <- r }()
	base := newBase(c.wire, nil)
	defer base.CloseIdleConnections()
	r.next.Store(p)
	return k.do(t, newClient(base), &c.ledger, "http://"+r.addr, id)
}

// learn returns how many bytes a request and its answer have.
func (c *cable) learn(t *testing.T, k kind) (up, down []byte) {
	p := &plan{up: whole, down: whole, tap: new([2]bytes.Buffer), over: make(chan struct{})}
	out, err := c.do(t, k, p, id(0))
	require.NoError(t, err)
	require.True(t, succeeded(out), "%+v", out)
	<-p.over
	return p.tap[0].Bytes(), p.tap[1].Bytes()
}

// id has the same length for all n, so that all requests of a kind have.
func id(n int) string { return fmt.Sprintf("call-%06d", n) }

// boundaries returns every number of bytes to a little past the header, and those
// about the end.
func boundaries(header, total int) (ns []int) {
	for n := range total + 1 {
		if n < header+4 || n > total-4 {
			ns = append(ns, n)
		}
	}
	return ns
}

func asIs(h http.Handler) http.Handler { return h }

func TestAConnectionThatBreaksAtAnyByteOfHTTP1(t *testing.T) {
	t.Parallel()
	for _, b := range breakings {
		for _, k := range kinds(4<<10, 16<<10) {
			t.Run(b.name+"/"+k.name, func(t *testing.T) {
				t.Parallel()
				c := newCable(t, http1, asIs)
				request, response := c.learn(t, k)
				sent := response
				if b.up {
					sent = request
				}
				header := bytes.Index(sent, []byte("\r\n\r\n")) + 4
				ns := boundaries(header, len(sent))
				require.NoError(t, each(len(ns), cap(c.relays), func(i int) error {
					out, err := c.do(t, k, b.at(int64(ns[i])), id(1+i))
					what := fmt.Sprintf("cut after %d bytes of %d+%d", ns[i], header, len(sent)-header)
					return errors.Join(err, b.judge(k, ns[i], header, len(sent), what, out, c.ledger.Of(id(1+i))))
				}))
			})
		}
	}
}

// judge says what is known of a call whose first connection broke after n bytes of
// the total, of which the header is the first part.
func (b breaking) judge(k kind, n, header, total int, what string, out faults.Outcome, e faults.Entry) error {
	work := 1
	if !b.up && n < header && k.call.Method != http.MethodPost {
		work = 2 // the first answer was lost
	}
	switch {
	case n == total: // nothing was cut
		return need(what, out, e, claim{succeeded(out) && out.Attempts == 1 && e.Arrivals == 1 && e.Work == 1, "done at once"})
	case !b.up && n >= header && b.reset && !out.Broken:
		// The reset may overtake the header. Then it is as if that had been cut.
		return need(what, out, e, claim{succeeded(out) == k.again, "repeated as a lost answer is"})
	case !b.up && n >= header:
		return need(what, out, e,
			claim{out.Broken && out.Attempts == 1 && e.Arrivals == 1 && e.Work == 1, "handed over as it came"},
			claim{b.reset || errors.Is(out.Err, io.ErrUnexpectedEOF), "an unexpected end"})
	case k.again:
		return need(what, out, e,
			claim{succeeded(out) && out.Attempts == 2, "repeated with success"},
			claim{e.Work == work, fmt.Sprintf("worked %d times", work)},
			claim{e.Arrivals <= 2 && (!b.up || n >= header || e.Arrivals == 1), "as often there as it was sent"})
	case b.up && !k.bare() && succeeded(out):
		// Whether the log overflowed before the connection broke is a matter of luck.
		return need(what, out, e, claim{out.Attempts == 2 && e.Work == 1, "repeated with success"})
	case b.up:
		return need(what, out, e,
			claim{!succeeded(out) && out.Attempts <= 1, "one error"},
			claim{e.Work == 0 && (n >= header || e.Arrivals == 0), "left undone"})
	default:
		return need(what, out, e, claim{!succeeded(out) && out.Attempts <= 1 && e.Arrivals == 1 && e.Work == 1, "one error after the work"})
	}
}

func TestAChunkedAnswerIsNeverTakenForWholeWhenItIsCut(t *testing.T) {
	t.Parallel()
	chunked := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(lengthless{w}, r) })
	}
	c := newCable(t, http1, chunked)
	k := kinds(100, 300)[0]
	_, response := c.learn(t, k)
	require.Contains(t, string(response), "Transfer-Encoding: chunked")
	header := bytes.Index(response, []byte("\r\n\r\n")) + 4
	require.NoError(t, each(len(response)-header, cap(c.relays), func(i int) error {
		out, err := c.do(t, k, &plan{up: whole, down: int64(header + i)}, id(1+i))
		e := c.ledger.Of(id(1 + i))
		return errors.Join(err, need(fmt.Sprintf("cut after %d bytes of %d", i, len(response)-header), out, e,
			claim{out.Broken && out.Attempts == 1 && e.Work == 1, "handed over as it came"}))
	}))
}

// A lengthless ResponseWriter does not tell how long the body is.
type lengthless struct{ http.ResponseWriter }

func (w lengthless) WriteHeader(status int) {
	w.Header().Del("Content-Length")
	w.ResponseWriter.WriteHeader(status)
	_ = http.NewResponseController(w.ResponseWriter).Flush()
}

func (w lengthless) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.ResponseWriter.Write(p)
}

// Frames have no fixed order, so that less is known of each byte than with HTTP/1.
func TestAConnectionThatBreaksAtAnyByteOfHTTP2(t *testing.T) {
	t.Parallel()
	const start = 230 // the handshake, the header and the begin of the body
	for _, up := range []bool{true, false} {
		for _, k := range kinds(4<<10, 8<<10) {
			t.Run(map[bool]string{true: "Request", false: "Answer"}[up]+"/"+k.name, func(t *testing.T) {
				t.Parallel()
				c := newCable(t, h2c, asIs)
				request, response := c.learn(t, k)
				total := len(response)
				if up {
					total = len(request)
				}
				ns := boundaries(min(start, total), total)
				require.NoError(t, each(len(ns), cap(c.relays), func(i int) error {
					// By FIN and by RST in turn, which halves the time.
					out, err := c.do(t, k, breaking{up: up, reset: i%2 == 0}.at(int64(ns[i])), id(1+i))
					e := c.ledger.Of(id(1 + i))
					return errors.Join(err, need(fmt.Sprintf("cut after %d bytes of %d", ns[i], total), out, e,
						// The last frames of a client follow its request, which may be answered by then.
						claim{!k.again || succeeded(out) || out.Broken, "a right answer, or one that was cut"},
						claim{!succeeded(out) || k.call.Method != http.MethodPost || e.Work == 1, "worked once"},
						claim{e.Arrivals <= max(1, out.Attempts), "as often there as it was sent"}))
				}))
			})
		}
	}
}
