package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/retrip-go/retrip"
)

// A scenario is one request, what the server does about it, and how that must end.
type scenario struct {
	name     string
	note     string // what retrip does
	method   string
	body     func(stop <-chan struct{}) io.Reader // nil: none
	options  []retrip.CallOption
	deadline time.Duration // of the request; 0: 3 s
	resend   bool          // the user sends it again if it failed
	host     host          // HTTP/1.1 by default
	script   []step        // of the server, one an attempt; then it behaves

	bare, retrip outcome
	attempts     int           // through retrip, those after a redirect included
	least, most  time.Duration // through retrip; 0: any
}

// An outcome is how a request ended, and how often the server did the work.
type outcome struct {
	result string
	work   int
}

var noKey = []retrip.CallOption{retrip.WithIdempotencyKey(nil)}

var scenarios = []scenario{
	{
		name: "GET, 503 with Retry-After", note: "it waits as long as the server asks",
		method: "GET",
		script: []step{status(503, "Retry-After", "1")},
		bare:   outcome{"503", 0},
		retrip: outcome{"200", 1}, attempts: 2, least: time.Second,
	}, {
		name: "POST, 429", note: "it waits for as long as its backoff says",
		method: "POST", body: whole,
		script: []step{status(429)},
		bare:   outcome{"429", 0},
		retrip: outcome{"200", 1}, attempts: 2,
	}, {
		name: "PUT of a stream, 502 and 504", note: "what it read of the stream it has kept",
		method: "PUT", body: streamed,
		script: []step{status(502), status(504)},
		bare:   outcome{"502", 0},
		retrip: outcome{"200", 1}, attempts: 3,
	}, {
		name: "POST, 500 after the work, user resends", note: "the server knows the second attempt by its Idempotency-Key",
		method: "POST", body: whole, resend: true,
		script: []step{afterWork(status(500))},
		bare:   outcome{"500, then 200", 2},
		retrip: outcome{"200", 1}, attempts: 2,
	}, {
		name: "POST without key, 500 after the work", note: "it may have been done, so it is not sent again",
		method: "POST", body: whole, options: noKey,
		script: []step{afterWork(status(500))},
		bare:   outcome{"500", 1},
		retrip: outcome{"500", 1}, attempts: 1,
	}, {
		name: "POST, reset after the work", note: "the key makes it safe to ask again",
		method: "POST", body: whole,
		script: []step{afterWork(reset)},
		bare:   outcome{"connection lost", 1},
		retrip: outcome{"200", 1}, attempts: 2,
	}, {
		name: "GET, connection closed, no headers", note: "it takes another connection",
		method: "GET",
		script: []step{hangUp},
		bare:   outcome{"connection lost", 0},
		retrip: outcome{"200", 1}, attempts: 2,
	}, {
		name: "GET, no answer", note: "an attempt has 1 s",
		method: "GET",
		script: []step{sleep},
		bare:   outcome{"timeout", 0},
		retrip: outcome{"200", 1}, attempts: 2,
	}, {
		name: "POST, 307 to a 503", note: "http.Client follows with the body, which is sent there again",
		method: "POST", body: whole,
		script: []step{redirect, status(503)},
		bare:   outcome{"503", 0},
		retrip: outcome{"200", 1}, attempts: 3,
	}, {
		name: "GET, certificate nobody trusts", note: "waiting does not help",
		method: "GET", host: untrusted,
		bare:   outcome{"not trusted", 0},
		retrip: outcome{"not trusted", 0}, attempts: 1,
	}, {
		name: "GET, host down", note: "the error tells of all attempts",
		method: "GET", host: down,
		bare:   outcome{"refused", 0},
		retrip: outcome{"refused", 0}, attempts: 4,
	}, {
		name: "POST without key, host down", note: "nothing was sent, so it may be repeated",
		method: "POST", body: whole, options: noKey, host: down,
		bare:   outcome{"refused", 0},
		retrip: outcome{"refused", 0}, attempts: 4,
	}, {
		// Over HTTP/1.1 net/http waits for the body's Read, whatever the deadline.
		name: "POST of a stream that stalls", note: "it ends at its deadline of 0.6 s, and the stream is closed",
		method: "POST", body: stalled, deadline: 600 * time.Millisecond,
		bare:   outcome{"hung", 0},
		retrip: outcome{"timeout", 0}, attempts: 1,
	}, {
		name: "HTTP/2 POST of a stream that stalls", note: "an attempt has 1 s, and another would stall too",
		method: "POST", body: stalled, host: http2,
		bare:   outcome{"timeout", 0},
		retrip: outcome{"timeout", 0}, attempts: 1, most: 2 * time.Second,
	}, {
		name: "HTTP/2 GET, no answer", note: "an attempt has 1 s",
		method: "GET", host: http2,
		script: []step{sleep},
		bare:   outcome{"timeout", 0},
		retrip: outcome{"200", 1}, attempts: 2,
	}, {
		name: "HTTP/2 POST, reset after the work", note: "the key makes it safe to ask again",
		method: "POST", body: whole, host: http2,
		script: []step{afterWork(abort)},
		bare:   outcome{"stream reset", 1},
		retrip: outcome{"200", 1}, attempts: 2,
	}, {
		name: "HTTP/2 PUT of a stream, reset", note: "it takes another connection, and has kept the stream",
		method: "PUT", body: streamed, host: http2,
		script: []step{reset},
		bare:   outcome{"connection lost", 0},
		retrip: outcome{"200", 1}, attempts: 2,
	},
}

// send plays the scenario with a server of its own, so that no scenario sees
// another's connections or draws on its host's breaker and quota.
func (s scenario) send(ctx context.Context, client *http.Client, cert tls.Certificate) (r report) {
	srv, err := serve(s.host, s.script, cert)
	if err != nil {
		return report{outcome: outcome{result: err.Error()}}
	}
	defer srv.close()
	start := time.Now()
	r.result, r.err = s.try(ctx, client, srv.url)
	if s.resend && r.result != "200" {
		var again string
		again, r.err = s.try(ctx, client, srv.url)
		r.result += ", then " + again
	}
	r.took = time.Since(start)
	r.work = srv.done()
	return r
}

// A request hangs if it does not end a while after its deadline. Then its body does.
const grace = 500 * time.Millisecond

// try sends the request once.
func (s scenario) try(ctx context.Context, client *http.Client, url string) (string, error) {
	deadline := cmp.Or(s.deadline, 3*time.Second)
	writing, stop := context.WithTimeout(ctx, deadline+2*grace)
	defer stop()
	var body io.Reader
	if s.body != nil {
		body = s.body(writing.Done())
	}
	ctx, cancel := context.WithTimeout(retrip.Override(ctx, s.options...), deadline)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, s.method, url, body)
	if err != nil {
		return err.Error(), err
	}
	start := time.Now()
	resp, err := client.Do(req)
	if time.Since(start) > deadline+grace {
		return "hung", err
	}
	if err != nil {
		return short(err), err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return short(err), err
	}
	if s.host == http2 && resp.ProtoMajor != 2 {
		return resp.Proto, nil
	}
	return fmt.Sprint(resp.StatusCode), nil
}

const content = "what is sent must arrive whole, with every attempt"

func whole(<-chan struct{}) io.Reader { return strings.NewReader(content) }

// streamed is a body that can be read only once.
func streamed(<-chan struct{}) io.Reader {
	r, w := io.Pipe()
	go func() {
		_, err := io.WriteString(w, content)
		w.CloseWithError(err)
	}()
	return r
}

// stalled is a body whose writer stops half-way and sits there.
func stalled(stop <-chan struct{}) io.Reader {
	r, w := io.Pipe()
	go func() {
		_, _ = io.WriteString(w, content[:len(content)/2])
		<-stop
		w.CloseWithError(errors.New("the writer never came back"))
	}()
	return r
}

// short names an error for the table.
func short(err error) string {
	for _, e := range []struct {
		is   error
		name string
	}{
		{context.DeadlineExceeded, "timeout"},
		{context.Canceled, "cancelled"},
		{syscall.ECONNREFUSED, "refused"},
		{syscall.Errno(10061), "refused"}, // Windows has numbers of its own
		{syscall.ECONNRESET, "connection lost"},
		{syscall.Errno(10054), "connection lost"},
		{syscall.EPIPE, "connection lost"},
		{io.EOF, "connection lost"},
		{io.ErrUnexpectedEOF, "connection lost"},
	} {
		if errors.Is(err, e.is) {
			return e.name
		}
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "not trusted"
	}
	if _, ok := errors.AsType[streamError](err); ok {
		return "stream reset"
	}
	return err.Error()
}

// A streamError is what errors.As takes for net/http's HTTP/2 stream error.
type streamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (e streamError) Error() string { return fmt.Sprintf("stream error: code %d", e.Code) }
