package retripotel

import (
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/retrip-go/retrip"
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
)

// Keys that the conventions have no name for.
const (
	reasonKey = attribute.Key("retrip.reason")
	hostKey   = attribute.Key("retrip.host")
	fromKey   = attribute.Key("retrip.breaker.from")
	toKey     = attribute.Key("retrip.breaker.to")
)

var knownMethods = []string{
	http.MethodConnect, http.MethodDelete, http.MethodGet, http.MethodHead, http.MethodOptions,
	http.MethodPatch, http.MethodPost, http.MethodPut, http.MethodTrace, "QUERY",
}

func method(req *http.Request) string {
	if req.Method == "" {
		return http.MethodGet
	}
	return req.Method
}

// appendTarget adds what is known of a request before it is made, and the attributes of
// WithAttributes. host is the key of the Transport's table.
func (r *recorder) appendTarget(attrs []attribute.KeyValue, req *http.Request, host string) []attribute.KeyValue {
	if m := method(req); r.methods[m] {
		attrs = append(attrs, semconv.HTTPRequestMethodKey.String(m))
	} else {
		attrs = append(attrs, semconv.HTTPRequestMethodOther)
	}
	address, port := server(req, host)
	if address != "" {
		attrs = append(attrs, semconv.ServerAddress(address))
	}
	if port > 0 {
		attrs = append(attrs, semconv.ServerPort(port))
	}
	return append(attrs, r.attrs...)
}

// server returns where the request goes: the host of its URL, not its Host field, which
// is a header's value. The table's key is the same without WithHosts, and preferred: a
// part of the URL would keep all of that in memory as long as a metric has the attribute.
func server(req *http.Request, host string) (address string, port int) {
	if !strings.EqualFold(host, req.URL.Host) {
		host = strings.Clone(req.URL.Host)
	}
	host = strings.ToLower(withoutUserinfo(host))
	switch req.URL.Scheme {
	case "http":
		port = 80
	case "https":
		port = 443
	}
	address, digits, err := net.SplitHostPort(host)
	if err != nil {
		return strings.Trim(host, "[]"), port
	}
	if n, err := strconv.ParseUint(digits, 10, 16); err == nil {
		port = int(n)
	}
	return address, port
}

// withoutUserinfo is for hosts of URLs that were made by hand: url.Parse puts none there.
func withoutUserinfo(host string) string { return host[strings.LastIndexByte(host, '@')+1:] }

// failed reports whether an attempt counts as an error, which for a client a status of
// 400 and more is, and one that HTTP does not know.
func failed(a retrip.Attempt) bool {
	return a.Err != nil || a.Response != nil && (a.Response.StatusCode >= 400 || a.Response.StatusCode < 100)
}

// appendOutcome adds what came of an attempt.
func appendOutcome(attrs []attribute.KeyValue, a retrip.Attempt) []attribute.KeyValue {
	if a.Response != nil {
		attrs = append(attrs, semconv.HTTPResponseStatusCode(a.Response.StatusCode))
	}
	if failed(a) {
		attrs = append(attrs, semconv.ErrorTypeKey.String(errorType(a)))
	}
	return attrs
}

// errorType is the outcome in the words of retrip's log, except for what would make too
// many of them: the code of an HTTP/2 stream error is any number that the server likes.
func errorType(a retrip.Attempt) string {
	kind, _, _ := strings.Cut(a.Outcome(), ", code ")
	return kind
}

// version is the protocol's as the conventions write it: "1.1", but "2" and "3".
func version(resp *http.Response) string {
	if resp.ProtoMajor > 1 {
		return strconv.Itoa(resp.ProtoMajor)
	}
	return strconv.Itoa(resp.ProtoMajor) + "." + strconv.Itoa(resp.ProtoMinor)
}
