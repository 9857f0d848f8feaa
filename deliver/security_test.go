package deliver_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/retrip-go/retrip/deliver"
	"github.com/stretchr/testify/require"
)

func TestTheDatabaseIsReadableByItsOwnerAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new.db")
	c := place{"sqlite", path}.open(t)
	put(t, c, "acme", "https://acme.example")
	for _, name := range []string{path, path + "-wal", path + "-shm"} {
		info, err := os.Stat(name)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode(), name)
	}
}

func TestOnlyPublicAndAllowedAddressesAreDialled(t *testing.T) {
	t.Parallel()
	for _, addr := range strings.Fields(`
		0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.127.255.255 127.0.0.1 127.255.255.254 169.254.0.1 169.254.169.254
		172.16.0.1 172.31.255.255 192.0.0.8 192.0.2.1 192.88.99.1 192.168.0.1 198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1
		224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
		:: ::1 ::7f00:1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 ::ffff:0:127.0.0.1
		64:ff9b::7f00:1 64:ff9b::a9fe:a9fe 64:ff9b:1::1 100::1 100:0:0:1::1 2001::1 2001:db8::1 2002:7f00:1:: 2002:a9fe:a9fe::
		3fff::1 5f00::1 fc00::1 fd00:ec2::254 fdff::1 fe80::1 fe80::1%eth0 fec0::1 ff02::1 ff0e::1`) {
		require.False(t, deliver.Permits(netip.MustParseAddr(addr)), addr)
	}
	for _, addr := range strings.Fields(`
		1.1.1.1 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0 169.253.255.255 169.255.0.0 172.15.255.255
		172.32.0.0 192.0.1.0 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 223.255.255.255 ::ffff:1.1.1.1
		2001:200:: 2001:4860:4860::8888 2003::1 2600::1 3ffe::1`) {
		require.True(t, deliver.Permits(netip.MustParseAddr(addr)), addr)
	}
	ten, local := netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/8")
	for addr, want := range map[string]bool{
		"10.1.2.3": true, "::ffff:10.1.2.3": true, "10.2.0.1": false, "127.0.0.1": false, "fd00::1": true, "fc00::1": false, "1.1.1.1": true,
	} {
		require.Equal(t, want, deliver.Permits(netip.MustParseAddr(addr), ten, local), addr)
	}
	require.Panics(t, func() { deliver.WithAllowedNetworks(netip.Prefix{}) })
}

// openStrict opens a database whose deliveries may go to public addresses alone.
func openStrict(t testing.TB, opts ...deliver.Option) client {
	t.Helper()
	c, err := deliver.OpenSQLite(filepath.Join(t.TempDir(), "test.db"), append([]deliver.Option{
		deliver.WithSchedule("", deliver.Steps(time.Hour)), deliver.WithPolling(25 * time.Millisecond), deliver.WithLogger(nil),
	}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// The check is of the address that a name led to, at the moment of dialling: what the name
// leads to at another time does not matter.
func TestNoNameAndNoSpellingLeadsInside(t *testing.T) {
	t.Parallel()
	c := openStrict(t)
	r := receive(t, nil)
	_, port, err := net.SplitHostPort(r.Listener.Addr().String())
	require.NoError(t, err)
	ids := 0
	for _, host := range []string{"127.0.0.1", "localhost", "LOCALHOST", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "0.0.0.0", "[::]", "[::1]"} {
		id := fmt.Sprint("d", ids)
		ids++
		put(t, c, id, "http://"+host+":"+port+"/")
		send(t, c, id, id)
	}
	require.NoError(t, c.Start(t.Context()))
	for i := range ids {
		s := failed(t, c, fmt.Sprint("d", i))
		require.Contains(t, s.LastError(), "its address is not public, and not allowed")
	}
	require.Empty(t, r.all())
}

func TestAnAllowedDestinationCannotRedirectInside(t *testing.T) {
	t.Parallel()
	c := openStrict(t, deliver.WithAllowedNetworks(netip.MustParsePrefix("127.0.0.1/32")))
	inside := receive(t, nil)
	for i, location := range []string{inside.URL, "http://169.254.169.254/latest", "//127.0.0.1:1/", "http://%zz/?token=hush", "::hush"} {
		r := receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", location)
			w.WriteHeader(http.StatusTemporaryRedirect)
		})
		id := fmt.Sprint("d", i)
		put(t, c, id, r.URL)
		send(t, c, id, id)
	}
	require.NoError(t, c.Start(t.Context()))
	for i := range 5 {
		require.Equal(t, "307 Temporary Redirect", failed(t, c, fmt.Sprint("d", i)).LastError())
	}
	require.Empty(t, inside.all())
}

func TestDestinationsThatCannotBeAreRefusedWithoutTheirSecrets(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t, deliver.WithTimeout(10*time.Second))
		good := deliver.Destination{ID: "acme", URL: "https://acme.example/hook?token=hush"}
		for text, change := range map[string]func(*deliver.Destination){
			"the id must have 1 to 255 bytes":                          func(d *deliver.Destination) { d.ID = "" },
			"no spaces or control characters":                          func(d *deliver.Destination) { d.ID = "a b" },
			`deliver: destination "a\x00b": the id`:                    func(d *deliver.Destination) { d.ID = "a\x00b" },
			`deliver: destination "a\xff": the id`:                     func(d *deliver.Destination) { d.ID = "a\xff" },
			"aaa\": the id must have":                                  func(d *deliver.Destination) { d.ID = strings.Repeat("a", 256) },
			"the URL cannot be parsed":                                 func(d *deliver.Destination) { d.URL = "https://hush:hush/%" },
			"the URL must be http or https, with a host":               func(d *deliver.Destination) { d.URL = "file:///hush" },
			`"acme": the URL must be http or https`:                    func(d *deliver.Destination) { d.URL = "gopher://hush" },
			`deliver: destination "acme": the URL must be http or htt`: func(d *deliver.Destination) { d.URL = "https:///hush" },
			`destination "acme": the URL must be http or https, with`:  func(d *deliver.Destination) { d.URL = "http://:80/hush" },
			"must not hold a user name or password":                    func(d *deliver.Destination) { d.URL = "https://user:hush@acme.example" },
			"Timeout 11s is not between 0 and the Client's, 10s":       func(d *deliver.Destination) { d.Timeout = 11 * time.Second },
			"Timeout -1s":        func(d *deliver.Destination) { d.Timeout = -time.Second },
			"AtOnce is negative": func(d *deliver.Destination) { d.AtOnce = -1 },
			"secret 1 is not":    func(d *deliver.Destination) { d.Secrets = []string{"hush"} },
			"secret 2 is not":    func(d *deliver.Destination) { d.Secrets = []string{secret(), "whsec_aHVzaA=="} },
			"secret 1 is a hint that stands for no secret": func(d *deliver.Destination) { d.Secrets = []string{"whsec_…hush"} },
		} {
			bad := good
			change(&bad)
			err := c.Destinations().Put(t.Context(), bad)
			require.ErrorContains(t, err, text)
			require.NotContains(t, err.Error(), "hush")
		}
		all, err := c.Destinations().List(t.Context())
		require.NoError(t, err)
		require.Empty(t, all)
	})
}

func TestSecretsAreShownAsHints(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t)
		r := receive(t, status(http.StatusNotFound))
		secrets := []string{secret(), secret()}
		d := deliver.Destination{ID: "acme", URL: r.URL, Secrets: secrets}
		require.NoError(t, c.Destinations().Put(t.Context(), d))
		require.NoError(t, c.Start(t.Context()))
		send(t, c, "one", "acme")
		dead := letter(t, c, "one")
		got := get(t, c, "acme")
		all, err := c.Destinations().List(t.Context())
		require.NoError(t, err)
		var file strings.Builder
		_, err = c.Dead().Export(t.Context(), &file, deliver.Filter{})
		require.NoError(t, err)
		var shown strings.Builder
		for _, v := range []any{got, &got, all, dead, only(t, c, "one"), c.Destinations().Describe(got), file.String()} {
			text, err := json.Marshal(v)
			require.NoError(t, err)
			fmt.Fprintf(&shown, "%v %+v %#v %s\n", v, v, v, text)
			slog.New(slog.NewTextHandler(&shown, nil)).Info("", "v", v)
			slog.New(slog.NewJSONHandler(&shown, nil)).Info("", "v", v)
		}
		for i, s := range secrets {
			key := strings.TrimPrefix(s, "whsec_")
			require.NotContains(t, shown.String(), key)
			require.NotContains(t, shown.String(), key[:8])
			require.NotContains(t, shown.String(), key[len(key)/2:])
			require.Equal(t, "whsec_…"+strings.TrimRight(s, "=")[len(strings.TrimRight(s, "="))-4:], got.Secrets[i])
		}

		// What was shown can be put back; a rotation keeps one and brings another.
		fresh := secret()
		d.Secrets = []string{fresh, got.Secrets[0]}
		require.NoError(t, c.Destinations().Put(t.Context(), d))
		d.Secrets = get(t, c, "acme").Secrets
		require.NoError(t, c.Destinations().Put(t.Context(), d))
		require.Equal(t, 1, p.count(t, fmt.Sprintf(`SELECT count(*) FROM retrip_destination WHERE secrets = '["%s","%s"]'`, fresh, secrets[0])))
		d.Secrets = nil
		require.NoError(t, c.Destinations().Put(t.Context(), d))
		require.Empty(t, get(t, c, "acme").Secrets)
	})
}

func TestNothingThatIsKeptOrLoggedHoldsTheURL(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		var logged syncBuffer
		c := p.open(t, never, deliver.WithTimeout(500*time.Millisecond), deliver.WithSchedule("", deliver.Schedule{Attempts: 1}),
			deliver.WithLogger(slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))))
		closed := receive(t, nil)
		closed.Close()
		hangs := receive(t, func(_ int, _ http.ResponseWriter, req *http.Request) { <-req.Context().Done() })
		aborts := receive(t, func(_ int, _ http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) })
		fails := receive(t, status(http.StatusInternalServerError))
		urls := map[string]string{
			"closed": closed.URL, "hangs": hangs.URL, "aborts": aborts.URL, "fails": fails.URL,
			"tls": strings.Replace(fails.URL, "http", "https", 1), "inside": "http://10.0.0.1",
		}
		for id, url := range urls {
			put(t, c, id, url+"/hush-path?token=hush-token#hush-fragment")
			send(t, c, id, id)
		}
		require.NoError(t, c.Start(t.Context()))
		for id := range urls {
			letter(t, c, id)
		}
		require.Zero(t, p.count(t, `SELECT count(*) FROM river_job WHERE CAST(errors AS text) LIKE '%hush%' OR CAST(metadata AS text) LIKE '%hush%' OR CAST(args AS text) LIKE '%hush%'`))
		require.Zero(t, p.count(t, `SELECT count(*) FROM retrip_destination WHERE paused_why LIKE '%hush%' OR disabled LIKE '%hush%'`))
		require.NotContains(t, logged.String(), "hush")
		var shown strings.Builder
		_, err := c.Dead().Export(t.Context(), &shown, deliver.Filter{})
		require.NoError(t, err)
		require.NotContains(t, shown.String(), "hush")
		require.Equal(t, "timed out", letter(t, c, "hangs").LastError())
	})
}

// flood answers for ever, and counts what was taken.
func flood(t testing.TB, head, more string) (url string, sent *atomic.Int64) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	sent = new(atomic.Int64)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
				_, _ = conn.Read(make([]byte, 4096))
				_, err := io.WriteString(conn, head)
				for err == nil {
					var n int
					n, err = io.WriteString(conn, more)
					sent.Add(int64(n))
				}
			}()
		}
	}()
	return "http://" + l.Addr().String(), sent
}

func TestAnAnswerWithoutAnEndIsCutOff(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t, deliver.WithSchedule("", deliver.Schedule{Attempts: 1}), deliver.WithTimeout(20*time.Second))
		const chunk = 1 << 15
		chunked := fmt.Sprintf("%x\r\n%s\r\n", chunk, strings.Repeat("<", chunk))
		const ok, bad, more = "HTTP/1.1 200 OK\r\n", "HTTP/1.1 500 No\r\n", "Transfer-Encoding: chunked\r\n\r\n"
		floods := map[string][2]string{
			"good-body": {ok + more, chunked},
			"bad-body":  {bad + more, chunked},
			"no-length": {bad + "\r\n", strings.Repeat("\x00", chunk)},
			"a-length":  {bad + "Content-Length: 9000000000000000000\r\n\r\n", strings.Repeat("\xff", chunk)},
			"fields":    {ok, strings.Repeat("X-Field: "+strings.Repeat("y", 1000)+"\r\n", 32)},
			"one-field": {ok + "X-Field: ", strings.Repeat("y", chunk)},
			"status":    {"HTTP/1.1 200 ", strings.Repeat("y", chunk)},
			"informal":  {"", strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", 800)},
			"no-http":   {"", strings.Repeat("SSH-2.0 ", 4096)},
		}
		sent := make(map[string]*atomic.Int64)
		for id, f := range floods {
			var url string
			url, sent[id] = flood(t, f[0], f[1])
			put(t, c, id, url)
			send(t, c, id, id)
		}
		require.NoError(t, c.Start(t.Context()))
		for id := range floods {
			if id == "good-body" {
				reached(t, c, id, deliver.StateDelivered)
			} else {
				letter(t, c, id)
			}
			a := only(t, c, id).Attempts[0]
			require.Less(t, a.Duration, 20*time.Second, id)
			require.LessOrEqual(t, len(a.Answer), 3*512+3, id) // what is no UTF-8 is three bytes long
			require.LessOrEqual(t, len(a.Err), 3*512+3, id)
			require.Less(t, sent[id].Load(), int64(16<<20), "%s: what was read, and the kernel's buffers", id)
		}
		require.Equal(t, strings.Repeat("<", 511)+"…", only(t, c, "bad-body").Attempts[0].Answer)
	})
}

func TestSQLInAFilterOrAnIDIsText(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t)
		buried(t, c, "acme", 0, 2, deliver.ReasonExhausted, time.Now())
		put(t, c, "acme", "https://acme.example")
		evil := []string{
			`'OR'1'='1`, `'--`, `"OR""="`, `');DROP/**/TABLE/**/river_job;--`, `@destination`, `$1`, `:event`, `?`, `%`, `_`, `acme%`, `\`, `''`, `{{x}}`, `/*TEMPLATE:schema*/`,
		}
		if p.slow() {
			evil = evil[:5]
		}
		for _, s := range evil {
			for name, f := range map[string]deliver.Filter{
				"destination": {Destination: s}, "event": {EventID: s}, "reason": {Reason: deliver.Reason(s)}, "both": {Destination: s, EventID: s, Reason: deliver.Reason(s)},
			} {
				require.Empty(t, list(t, c, f), "%s %s", name, s)
				n, err := c.Dead().Delete(t.Context(), f)
				require.NoError(t, err)
				require.Zero(t, n)
				replays, err := c.Dead().ReplayAll(t.Context(), f, deliver.Replaying{})
				require.NoError(t, err)
				require.Empty(t, replays)
			}
			_, err := c.Status(t.Context(), s)
			require.ErrorIs(t, err, deliver.ErrNotFound, s)
			require.ErrorIs(t, c.Destinations().Resume(t.Context(), s), deliver.ErrNotFound, s)
			require.ErrorIs(t, c.Destinations().Disable(t.Context(), s, s), deliver.ErrNotFound, s)

			// As an id it is one like any other.
			put(t, c, s, "https://evil.example/?"+s)
			require.Equal(t, s, get(t, c, s).ID)
			require.NoError(t, c.Destinations().Disable(t.Context(), s, s))
			require.Equal(t, s, get(t, c, s).Disabled)
			send(t, c, s, s)
			require.Equal(t, s, only(t, c, s).Destination)
		}
		require.Empty(t, get(t, c, "acme").Disabled)
		require.NoError(t, c.Start(t.Context()))
		for _, s := range evil {
			letter(t, c, s)
			require.Equal(t, []string{s}, list(t, c, deliver.Filter{Destination: s}))
			require.Equal(t, []string{s}, list(t, c, deliver.Filter{EventID: s, Reason: deliver.ReasonDisabled}))
		}
		require.Len(t, list(t, c, deliver.Filter{}), len(evil)+2)
	})
}
