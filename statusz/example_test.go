package statusz_test

import (
	"fmt"
	"net/http"

	"github.com/retrip-go/retrip"
	"github.com/retrip-go/retrip/statusz"
)

func ExampleHandler() {
	billing, mail := retrip.New(nil), retrip.New(nil)
	http.Handle("/debug/retrip", statusz.Handler().Add("billing", billing).Add("mail", mail))
}

func ExamplePage_Snapshot() {
	rt := retrip.New(play(503, 200), retrip.WithBackoff(retrip.Constant(0)))
	page := statusz.Handler(rt)
	client := &http.Client{Transport: rt}
	if resp, err := client.Get("http://api.example.com/"); err == nil {
		_ = resp.Body.Close()
	}
	for _, t := range page.Snapshot().Transports {
		for _, h := range t.Hosts {
			fmt.Printf("%s: %.0f%% at the first try, %.0f%% after retries, breaker %s\n",
				h.Name, 100*h.Total.FirstTryRate(), 100*h.Total.SuccessRate(), h.Breaker.State)
		}
	}
	// Output: api.example.com: 0% at the first try, 100% after retries, breaker closed
}
