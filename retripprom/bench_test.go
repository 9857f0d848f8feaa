package retripprom_test

import (
	"net/http"
	"syscall"
	"testing"

	"github.com/retrip-go/retrip"
	"github.com/retrip-go/retrip/retripprom"
	"github.com/stretchr/testify/require"
)

// stub is a base that costs next to nothing.
func stub(status int) roundTrip {
	resp := &http.Response{StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Body: http.NoBody}
	return func(*http.Request) (*http.Response, error) { return resp, nil }
}

// inTurn takes the bases in turn, over and over.
func inTurn(bases ...roundTrip) roundTrip {
	var calls int
	return func(req *http.Request) (*http.Response, error) {
		calls++
		return bases[calls%len(bases)](req)
	}
}

// atOnce is a Transport that does not pause and is never stopped.
func atOnce(base http.RoundTripper) *retrip.Transport {
	return retrip.New(base, retrip.WithBackoff(retrip.Constant(0)), retrip.WithRetryQuota(nil), retrip.WithBreaker(nil))
}

func TestACollectorAllocatesNothingOfItsOwn(t *testing.T) {
	reset := fail(syscall.ECONNRESET)
	for _, tt := range []struct {
		name string
		base func() roundTrip
	}{
		{"a GET that succeeds", func() roundTrip { return stub(200) }},
		{"a 404", func() roundTrip { return stub(404) }},
		{"two failures, then success", func() roundTrip { return inTurn(stub(200), stub(503), stub(500)) }},
		{"two connections reset, then success", func() roundTrip { return inTurn(stub(200), reset, reset) }},
	} {
		for _, opts := range [][]retripprom.Option{nil, {retripprom.WithNativeHistograms()}} {
			t.Run(tt.name, func(t *testing.T) {
				req := request(t, "example.com")
				allocs := func(rt *retrip.Transport) float64 {
					return testing.AllocsPerRun(200, func() { _, _ = rt.RoundTrip(req) })
				}
				bare := allocs(atOnce(tt.base()))
				rt := atOnce(tt.base())
				watch(t, rt, opts...)
				require.Equal(t, bare, allocs(rt))
			})
		}
	}
	rt := retrip.New(stub(200))
	watch(t, rt)
	req := request(t, "example.com")
	require.Zero(t, testing.AllocsPerRun(200, func() { _, _ = rt.RoundTrip(req) }), "a GET that succeeds, with all defaults")
}

func BenchmarkRequest(b *testing.B) {
	for _, bb := range []struct {
		name string
		base func() roundTrip
	}{
		{"failures=0", func() roundTrip { return stub(200) }},
		{"failures=2", func() roundTrip { return inTurn(stub(200), stub(503), stub(503)) }},
	} {
		for _, wrap := range []string{"base", "retrip", "hooks", "collector", "native"} {
			b.Run("method=GET/"+bb.name+"/wrap="+wrap, func(b *testing.B) {
				rt := atOnce(bb.base())
				use := http.RoundTripper(rt)
				switch wrap {
				case "base":
					use = bb.base()
				case "hooks": // what is paid for being told
					defer rt.Watch(&retrip.Trace{
						Attempted: func(retrip.AttemptedInfo) {}, Pausing: func(retrip.PausingInfo) {}, GaveUp: func(retrip.GaveUpInfo) {},
					})()
				case "collector":
					defer retripprom.New().Watch("api", rt)()
				case "native":
					defer retripprom.New(retripprom.WithNativeHistograms()).Watch("api", rt)()
				}
				req := request(b, "example.com")
				b.ReportAllocs()
				for b.Loop() {
					_, _ = use.RoundTrip(req)
				}
			})
		}
	}
}

func BenchmarkScrape(b *testing.B) {
	c := everything(b)
	b.ReportAllocs()
	for b.Loop() {
		scrape(b, c)
	}
}
