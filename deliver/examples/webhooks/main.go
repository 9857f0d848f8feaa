// Webhooks shows a delivery service at work, with nothing installed: a SQLite file, a
// sender, three destinations (one healthy, one flaky, one whose certificate is broken)
// and the panel. Of 300 events some become dead letters; an alert is given, the
// certificate is mended, and a replay brings every event through. At the end the
// receivers' ledger is compared with what was sent.
//
// Hours are seconds here, so that it ends within a minute.
package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/retrip-go/retrip/deliver"
	"github.com/retrip-go/retrip/deliver/panel"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

func main() {
	log.SetFlags(0)
	dir, err := os.MkdirTemp("", "webhooks")
	if err != nil {
		log.Fatal(err)
	}
	err = errors.Join(run(context.Background(), filepath.Join(dir, "webhooks.db"), 300, os.Stdout), os.RemoveAll(dir))
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, file string, events int, out io.Writer) error {
	receivers := newReceivers()
	defer receivers.close()
	alerts := make(chan deliver.Notice, 100)
	client, err := deliver.OpenSQLite(file,
		deliver.WithTransport(receivers.transport()), // trusts the mended certificate; loopback
		deliver.WithAllowedNetworks(netip.MustParsePrefix("127.0.0.0/8")),
		deliver.WithSchedule("", deliver.Doubling(500*time.Millisecond, 2*time.Second, 0.2, 4)),
		// Left out here: with the default, 20 failures would pause the destination for 10 min.
		deliver.WithBreaker(deliver.Breaker{Failures: 10 * events, Pauses: []time.Duration{time.Second}}),
		deliver.WithAlert(deliver.Alert{Dead: events / 15, Per: time.Hour, Again: time.Hour}),
		deliver.WithAtOnce(25),
		deliver.WithPolling(50*time.Millisecond),
		deliver.WithLogger(slog.New(slog.DiscardHandler)),
		deliver.WithNotifier(deliver.NotifierFunc(func(_ context.Context, n deliver.Notice) error {
			alerts <- n
			return nil
		})))
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()

	for id, url := range receivers.urls() {
		if err := client.Destinations().Put(ctx, deliver.Destination{ID: id, URL: url, Secrets: []string{receivers.secret}}); err != nil {
			return err
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: panel.Handler(client), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(l) }()
	defer func() { _ = server.Close() }()
	fmt.Fprintf(out, "the panel: http://%s/\n\n", l.Addr())

	sent := make(map[string]string, events) // id to destination
	names := []string{"healthy", "flaky", "broken"}
	for i := range events {
		to := names[i%len(names)]
		e, err := deliver.Envelope("order.paid", map[string]int{"order": i}, to)
		if err != nil {
			return err
		}
		if _, err := client.Send(ctx, e); err != nil {
			return err
		}
		sent[e.ID] = to
	}
	fmt.Fprintf(out, "%d events are written down\n", len(sent))
	if err := client.Start(ctx); err != nil {
		return err
	}

	dead := deliver.Filter{Destination: "broken"}
	if err := watch(ctx, out, client, receivers, alerts, func() (bool, error) {
		n, err := client.Dead().Count(ctx, dead)
		return n == events/len(names) && receivers.got() == events-n, err
	}); err != nil {
		return err
	}
	list, err := client.Dead().List(ctx, deliver.Filter{Limit: 1})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\na dead letter: event %s, %s, %s: %s\n", list[0].EventID, list[0].Reason, list[0].Status, list[0].LastError())

	receivers.mend()
	if err := client.Destinations().Resume(ctx, "broken"); err != nil {
		return err
	}
	replays, err := client.Dead().ReplayAll(ctx, dead, deliver.Replaying{})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "the certificate is mended; %d dead letters are replayed\n\n", len(replays))
	if err := watch(ctx, out, client, receivers, alerts, func() (bool, error) {
		return receivers.got() == events, nil
	}); err != nil {
		return err
	}
	if err := client.Stop(ctx); err != nil {
		return err
	}
	return receivers.compare(out, sent)
}

// watch prints a line a second until done.
func watch(ctx context.Context, out io.Writer, client *deliver.Client[*sql.Tx], r *receivers, alerts <-chan deliver.Notice, done func() (bool, error)) error {
	limit := time.Now().Add(2 * time.Minute)
	for time.Now().Before(limit) {
		pending, err := client.Pending(ctx, 1000)
		if err != nil {
			return err
		}
		next := ""
		retrying := 0
		for _, s := range pending {
			if s.State == deliver.StateRetrying {
				if retrying++; next == "" {
					next = fmt.Sprintf("; %s: %s", s.Destination, s)
				}
			}
		}
		dead, err := client.Dead().Count(ctx, deliver.Filter{})
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%3d received, %3d under way, %3d of them retrying, %3d dead%s\n", r.got(), len(pending), retrying, dead, next)
		for len(alerts) > 0 {
			fmt.Fprintf(out, "    ALERT %s\n", <-alerts)
		}
		if ok, err := done(); ok || err != nil {
			return err
		}
		time.Sleep(time.Second)
	}
	return errors.New("it takes too long")
}

// receivers are the consumers: they check the signature and keep a ledger by id.
type receivers struct {
	healthy, flaky, broken *httptest.Server
	secret                 string
	webhook                *standardwebhooks.Webhook
	bad                    atomic.Bool // the certificate is

	mu     sync.Mutex
	calls  map[string]int // by id
	ledger map[string]int // how often the work of an id was done
	where  map[string]string
}

func newReceivers() *receivers {
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	r := &receivers{secret: "whsec_" + base64.StdEncoding.EncodeToString(key), calls: make(map[string]int), ledger: make(map[string]int), where: make(map[string]string)}
	r.webhook, _ = standardwebhooks.NewWebhook(r.secret)
	r.bad.Store(true)
	r.healthy = httptest.NewServer(r.receive("healthy", 0))
	r.flaky = httptest.NewServer(r.receive("flaky", 1))
	r.broken = httptest.NewUnstartedServer(r.receive("broken", 0))
	r.broken.Config.ErrorLog = log.New(io.Discard, "", 0)
	expired := &tls.Config{Certificates: []tls.Certificate{expiredCertificate()}}
	r.broken.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		if r.bad.Load() {
			return expired, nil
		}
		return nil, nil // the server's own
	}}
	r.broken.StartTLS()
	return r
}

func (r *receivers) close() {
	r.healthy.Close()
	r.flaky.Close()
	r.broken.Close()
}

func (r *receivers) urls() map[string]string {
	return map[string]string{"healthy": r.healthy.URL, "flaky": r.flaky.URL, "broken": r.broken.URL}
}

// expiredCertificate is one that somebody forgot to renew.
func expiredCertificate() tls.Certificate {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().AddDate(-1, 0, 0), NotAfter: time.Now().AddDate(0, 0, -1),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		panic(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}
}

// transport trusts the server's own certificate.
func (r *receivers) transport() http.RoundTripper {
	pool := x509.NewCertPool()
	pool.AddCert(r.broken.Certificate())
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = 100
	t.TLSClientConfig = &tls.Config{RootCAs: pool}
	return t
}

func (r *receivers) mend() { r.bad.Store(false) }

// receive answers the first calls of each id with 503.
func (r *receivers) receive(name string, failures int) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil || r.webhook.Verify(body, req.Header) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		id := req.Header.Get(standardwebhooks.HeaderWebhookID)
		if r.calls[id]++; r.calls[id] <= failures {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		r.ledger[id]++ // a receiver in earnest looks first whether it did the work already
		r.where[id] = name
	}
}

func (r *receivers) got() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.ledger)
}

func (r *receivers) compare(out io.Writer, sent map[string]string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	wrong := 0
	for id, to := range sent {
		if r.ledger[id] != 1 || r.where[id] != to {
			wrong++
		}
	}
	if wrong > 0 || len(r.ledger) != len(sent) {
		return fmt.Errorf("%d events are wrong; %d are in the ledger, %d were sent", wrong, len(r.ledger), len(sent))
	}
	fmt.Fprintf(out, "\nsent %d events, received %d, each once\n", len(sent), len(r.ledger))
	return nil
}
