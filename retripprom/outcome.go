package retripprom

import (
	"context"
	"crypto/tls"
	"errors"
	"net"

	"github.com/retrip-go/retrip"
)

// An outcome is a value of the label outcome. Attempt.Outcome tells more, but what it
// tells is not bounded: it has the number of a server's HTTP/2 error, and the type of an
// error that it does not know.
type outcome uint8

const (
	unknown     outcome = iota // no status between 100 and 599, no error that we know
	status1xx                  // the five are in order
	status2xx                  //
	status3xx                  //
	status4xx                  //
	status5xx                  //
	timeout                    // of the attempt, of the request, or of the base
	cancelled                  // by the caller, or by a layer below
	dns                        // the host was not found, or the look-up failed
	tlsFailed                  // no trust, or no handshake
	unconnected                // no connection was had
	broken                     // a connection that failed
	refusedLow                 // by the breaker of a Transport below
	outcomes                   // how many there are
)

var outcomeLabels = [outcomes]string{
	unknown:     "other",
	status1xx:   "1xx",
	status2xx:   "2xx",
	status3xx:   "3xx",
	status4xx:   "4xx",
	status5xx:   "5xx",
	timeout:     "timeout",
	cancelled:   "cancelled",
	dns:         "dns",
	tlsFailed:   "tls",
	unconnected: "connect",
	broken:      "connection",
	refusedLow:  "breaker",
}

func outcomeOf(a retrip.Attempt) outcome {
	switch {
	case a.Err != nil:
		return errorOutcome(a)
	case a.Response == nil || a.Response.StatusCode < 100 || a.Response.StatusCode > 599:
		return unknown
	}
	return status1xx + outcome(a.Response.StatusCode/100-1)
}

// errorOutcome goes from what is certain to what is a guess: a look-up that timed out
// is one of dns, a dial that timed out a timeout.
func errorOutcome(a retrip.Attempt) outcome {
	op := ""
	if e, ok := errors.AsType[*net.OpError](a.Err); ok {
		op = e.Op
	}
	switch {
	case a.Request.Context().Err() == context.Canceled:
		return cancelled
	case isType[*retrip.OpenError](a.Err):
		return refusedLow
	case isType[*net.DNSError](a.Err):
		return dns
	case isType[*tls.CertificateVerificationError](a.Err), isType[tls.RecordHeaderError](a.Err),
		op == "remote error", op == "local error": // alerts, received and sent
		return tlsFailed
	case timedOut(a.Err):
		return timeout
	case op == "dial", op == "proxyconnect":
		return unconnected
	case errors.Is(a.Err, context.Canceled):
		return cancelled
	case retrip.DefaultPolicy(a): // knows net/http's errors that have no type
		return broken
	}
	return unknown
}

func isType[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

func timedOut(err error) bool {
	if n, ok := errors.AsType[net.Error](err); ok && n.Timeout() {
		return true
	}
	return errors.Is(err, context.DeadlineExceeded)
}
