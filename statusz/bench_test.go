package statusz_test

import (
	"net/http"
	"testing"

	"github.com/retrip-go/retrip"
	"github.com/retrip-go/retrip/statusz"
)

func BenchmarkPage(b *testing.B) {
	rt := retrip.New(play(200))
	p := statusz.Handler(rt)
	for _, name := range hosts(1000) {
		get(b, rt, "http://"+name+"/")
	}
	for _, query := range []string{"", "?format=json"} {
		b.Run("hosts=1000/query="+query, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if w := ask(p, query); w.Code != http.StatusOK {
					b.Fatal(w.Code)
				}
			}
		})
	}
}

func BenchmarkGet(b *testing.B) {
	resp := &http.Response{StatusCode: 200, Body: http.NoBody}
	for _, page := range []string{"none", "statusz"} {
		b.Run("page="+page, func(b *testing.B) {
			rt := retrip.New(roundTrip(func(*http.Request) (*http.Response, error) { return resp, nil }))
			if page != "none" {
				statusz.Handler(rt)
			}
			req, err := http.NewRequest(http.MethodGet, "http://example.com/", nil)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				_, _ = rt.RoundTrip(req)
			}
		})
	}
}
