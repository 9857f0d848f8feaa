package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"time"
)

// moods are what hosts do to a request, given the time since they were started.
var moods = map[string]func(w http.ResponseWriter, r *http.Request, up time.Duration){
	"well.example": func(http.ResponseWriter, *http.Request, time.Duration) {},
	"flaky.example": func(w http.ResponseWriter, _ *http.Request, _ time.Duration) {
		if rand.IntN(4) == 0 {
			w.WriteHeader(http.StatusBadGateway)
		}
	},
	"slow.example": func(_ http.ResponseWriter, r *http.Request, _ time.Duration) {
		if rand.IntN(10) == 0 { // longer than an attempt may take
			select {
			case <-time.After(3 * time.Second):
			case <-r.Context().Done():
			}
		}
	},
	"resets.example": func(http.ResponseWriter, *http.Request, time.Duration) {
		if rand.IntN(6) == 0 {
			panic(http.ErrAbortHandler)
		}
	},
	"busy.example": func(w http.ResponseWriter, _ *http.Request, _ time.Duration) {
		if rand.IntN(5) == 0 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	},
	// Down for 20 s of each 40, from the second on.
	"down.example": func(w http.ResponseWriter, _ *http.Request, up time.Duration) {
		if (up-time.Second)%(40*time.Second) < 20*time.Second && up > time.Second {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	},
}

// start runs a server for each mood and returns their addresses by their names.
func start() (hosts map[string]string, stop func()) {
	began := time.Now()
	hosts = map[string]string{}
	var servers []*httptest.Server
	for name, mood := range moods {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mood(w, r, time.Since(began))
		}))
		servers = append(servers, server)
		hosts[name] = server.Listener.Addr().String()
	}
	return hosts, func() {
		for _, s := range servers {
			s.CloseClientConnections()
			s.Close()
		}
	}
}

// dialer finds the hosts by their names.
func dialer(hosts map[string]string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		name, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		to, ok := hosts[name]
		if !ok {
			return nil, fmt.Errorf("there is no host %q", name)
		}
		return new(net.Dialer).DialContext(ctx, network, to)
	}
}
