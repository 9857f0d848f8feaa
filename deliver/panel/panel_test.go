package panel_test

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/retrip-go/retrip/deliver"
	"github.com/retrip-go/retrip/deliver/panel"
	"github.com/stretchr/testify/require"
)

func TestTheFirstPageShowsHowDestinationsDoAndWhatIsUnderWay(t *testing.T) {
	onEngines(t, func(t *testing.T, s store) {
		down := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }))
		defer down.Close()
		s.put(t, "acme", down.URL)
		s.put(t, "held", down.URL)
		s.put(t, "idle", down.URL)
		s.put(t, "off", down.URL)
		require.NoError(t, s.Destinations().Disable(t.Context(), "off", "contract ended"))
		require.NoError(t, s.Destinations().Pause(t.Context(), "held", time.Now().Add(time.Hour)))
		for i := range 3 { // opens the breaker
			_, err := s.Send(t.Context(), deliver.Event{ID: fmt.Sprintf("order-%d", i), To: []string{"acme"}, Payload: []byte("{}")})
			require.NoError(t, err)
		}
		require.NoError(t, s.Start(t.Context()))
		b := browse(t, s)
		var page string
		require.Eventually(t, func() bool {
			page = b.get(".")
			return strings.Contains(page, "paused until") && strings.Count(page, "attempt 2 of 3, next at ") == 3 && strings.Contains(page, "0.0 %")
		}, 60*time.Second, 50*time.Millisecond)
		require.Regexp(t, `class="state paused">paused until [\d: -]+, trip 1 of 2, because 503 Service Unavailable<`, page)
		require.Regexp(t, `class="state paused">held until `, page)
		require.Contains(t, page, `class="state off">disabled: contract ended<`)
		require.Contains(t, page, `class="state open">open for deliveries<`)
		// What is not over is no success and no failure, and its first attempts are no retries.
		require.Equal(t, 1, strings.Count(page, `<td class="n">–</td>`+"\n"+`<td class="n">0.0 %</td>`))
		require.Equal(t, 3, strings.Count(page, `<td class="n">–</td>`+"\n"+`<td class="n">–</td>`), "no rate of nothing")
		require.Contains(t, page, "503 Service Unavailable</td>")
	})
}

func TestTheFirstPageShowsFiftyOfWhatIsUnderWayAndSaysSo(t *testing.T) {
	onEngines(t, func(t *testing.T, s store) {
		s.put(t, "acme", "https://acme.example/hook")
		b := browse(t, s)
		for i := range 51 {
			if i == 50 {
				require.NotContains(t, b.get("."), "the next 50")
			}
			_, err := s.Send(t.Context(), deliver.Event{ID: fmt.Sprint(i), To: []string{"acme"}, Payload: []byte("{}")})
			require.NoError(t, err)
		}
		page := b.get(".")
		require.Equal(t, 50, strings.Count(page, `href="./event?id=`))
		require.Contains(t, page, "<small>the next 50</small>")
	})
}

func TestRatesAreThoseOfTheLastDay(t *testing.T) {
	onEngines(t, func(t *testing.T, s store) {
		s.put(t, "acme", "https://acme.example/hook")
		now := time.Now().Unix() / 60
		// 90 at once, 6 with a retry, 4 dead: 96 % of 100, and of 130 attempts 30 retries.
		s.exec(t, fmt.Sprintf(`INSERT INTO retrip_minute VALUES ('acme', %d, 130, 40, 90, 6, 4, 30), ('acme', %d, 7654, 7654, 7654, 0, 7654, 7654), ('parked.example', %d, 3, 3, 0, 0, 1, 2), ('nearly', %d, 10000, 1, 9999, 0, 1, 0)`,
			now-60, now-25*60, now-5, now-5))
		page := browse(t, s).get(".")
		require.Contains(t, page, `<td class="n">96.0 %</td>`)
		require.Contains(t, page, `<td class="n">23.0 %</td>`)
		require.Contains(t, page, `<td class="n">90</td><td class="n">6</td>`)
		require.Contains(t, page, `<a href="./dead?destination=acme" aria-label="4 dead letters of acme">4</a>`)
		require.Contains(t, page, "acme.example")
		require.Contains(t, page, "no destination: parked requests")
		require.NotContains(t, page, "7654", "what is older is not counted")
		require.Contains(t, page, `<td class="n">99.9 %</td>`, "one of 10,000 is missing")
	})
}

func TestTimesAreLocal(t *testing.T) {
	onEngines(t, func(t *testing.T, s store) {
		s.put(t, "acme", "https://acme.example/hook")
		_, err := s.Send(t.Context(), deliver.Event{ID: "e", To: []string{"acme"}})
		require.NoError(t, err)
		pending, err := s.Pending(t.Context(), 1)
		require.NoError(t, err)
		s.bury(t, failed("f", "acme"))
		dead, err := s.Dead().List(t.Context(), deliver.Filter{})
		require.NoError(t, err)
		for what, at := range map[string]time.Time{
			"next": pending[0].Next, "created": pending[0].Created, "ended": dead[0].Ended, "attempt": dead[0].Attempts[0].At,
		} {
			require.Same(t, time.Local, at.Location(), what)
		}
	})
}

func TestPagesPermitThemselvesAndNothingElse(t *testing.T) {
	t.Parallel()
	s := open(t, "sqlite")
	id := s.bury(t, failed("e", "acme"))[0]
	b := browse(t, s, panel.WithAuthorize(anyone))
	for _, path := range []string{".", "dead", fmt.Sprint("dead/", id), "event?id=e", "style.css", "dead/999", "no", "dead?since=x"} {
		resp, text := b.do(http.MethodGet, path, nil)
		h := resp.Header
		require.Equal(t, "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'", h.Get("Content-Security-Policy"), path)
		require.Equal(t, "nosniff", h.Get("X-Content-Type-Options"), path)
		require.Equal(t, "same-origin", h.Get("Referrer-Policy"), path)
		if path != "style.css" {
			require.Equal(t, "no-store", h.Get("Cache-Control"), path)
		}
		if resp.StatusCode != http.StatusOK || path == "style.css" {
			continue
		}
		require.Equal(t, "text/html; charset=utf-8", h.Get("Content-Type"), path)
		// What the policy does not permit is not there.
		require.NotRegexp(t, `(?i)<script|<style|<iframe|<img|<object|<base|\sstyle=|\son\w+=`, text, path)
		for _, m := range links.FindAllStringSubmatch(text, -1) {
			u, err := url.Parse(m[1])
			require.NoError(t, err)
			require.True(t, m[1] == "data:," || u.Scheme == "" && u.Host == "" && !strings.HasPrefix(m[1], "/"), "%s: %s", path, m[1])
		}
	}
}

// strange are texts that must be shown as they are, and do nothing.
var strange = []string{
	`<script>alert(1)</script>`, `"><script>alert(1)</script>`, `' onmouseover='alert(1)`, `" onfocus="alert(1)" autofocus="`,
	`</pre><img src=x onerror=alert(1)>`, `</textarea><svg/onload=alert(1)>`, `<!--`, `]]>`, `{{.Token}}`, `&lt;script&gt;`, `&#60;script>`,
	`javascript:alert(1)`, `data:text/html,<script>alert(1)</script>`, `</title><script>alert(1)</script>`, "\u202egnp.exe", `%3Cscript%3E`, "`${1}`",
	`</option></select><script>alert(1)</script>`, `</datalist><b>`, `../../../x`, `?a=b&note=replayed#f`, "a\nb",
}

var (
	tags     = regexp.MustCompile(`<[^>]*>`)
	quoted   = regexp.MustCompile(`"[^"]*"`)
	names    = regexp.MustCompile(`</?\w+`)
	datalist = regexp.MustCompile(`(?s)<datalist.*?</datalist>`)
)

// skeleton is the elements of a page, but for the list of destinations.
func skeleton(page string) string {
	return strings.Join(names.FindAllString(datalist.ReplaceAllString(page, ""), -1), "")
}

func TestNothingThatIsShownIsMarkup(t *testing.T) {
	onEngines(t, func(t *testing.T, s store) {
		b := browse(t, s, panel.WithAuthorize(anyone))
		s.bury(t, failed("plain", "plain"))
		bare := map[string]string{"dead": skeleton(b.get("dead?event=plain")), "event": skeleton(b.get("event?id=plain"))}
		for i, text := range strange {
			id := strings.Map(func(r rune) rune { // an event's id is held to this
				if r <= ' ' || r > '~' || r == '.' {
					return '-'
				}
				return r
			}, fmt.Sprint(text, i))
			if d := strings.ReplaceAll(id, " ", "-"); strings.Contains(d, "script") {
				// Ids of destinations are checked, but not for markup.
				require.NoError(t, s.Destinations().Put(t.Context(), deliver.Destination{ID: d, URL: "https://a.example/<script>?<script>"}))
			}
			l := failed(id, id)
			l.Payload, l.ContentType = []byte(text), strings.ReplaceAll(text, "\n", " ")
			l.Attempts[0].Answer = text
			l.Attempts = append(l.Attempts, deliver.Attempt{Number: 2, At: time.Now(), Err: text})
			number := s.bury(t, l)[0]
			shown := []string{
				b.get("dead?" + url.Values{"event": {id}}.Encode()),
				b.get("dead?" + url.Values{"destination": {id}}.Encode()),
				b.get(fmt.Sprint("dead/", number)),
				b.get("event?" + url.Values{"id": {id}}.Encode()),
			}
			for _, page := range shown {
				for _, tag := range tags.FindAllString(quoted.ReplaceAllString(page, `""`), -1) {
					require.NotRegexp(t, `(?i)^<(script|img|svg|b|/textarea)\b|\son\w+\s*=`, tag)
				}
				require.Contains(t, html.UnescapeString(page), id)
				require.NotContains(t, page, `href="javascript:`)
			}
			for _, found := range listed(shown[0]) {
				require.Equal(t, fmt.Sprint(number), found, id)
			}
			require.Len(t, listed(shown[1]), 1)
			require.Contains(t, html.UnescapeString(shown[2]), text)
			require.Equal(t, bare["dead"], skeleton(shown[0]), id)
			require.Equal(t, bare["event"], skeleton(shown[3]), id)
		}
		// The first page shows all of them at once.
		page := b.get(".")
		require.NotContains(t, page, "<script")
		require.Contains(t, page, "&lt;script&gt;")
	})
}

func TestB64NothingSecretIsShown(t *testing.T) {
	onEngines(t, func(t *testing.T, s store) {
		secret := "whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0"
		require.NoError(t, s.Destinations().Put(t.Context(), deliver.Destination{
			ID: "acme", URL: "http://127.0.0.1:1/path-secret?query=secret", Secrets: []string{secret},
		}))
		parked := failed("p", "parked.example")
		parked.Reason = deliver.ReasonParked
		parked.Parked = &deliver.Parked{
			Method: "PUT", URL: "https://user:password@parked.example/path-secret?token=secret#fragment-secret",
			Header: http.Header{"Authorization": {"Bearer secret"}}, Lost: "its body could be read only once, and was not kept",
		}
		number := s.bury(t, parked)[0]
		_, err := s.Send(t.Context(), deliver.Event{ID: "e", To: []string{"acme"}})
		require.NoError(t, err)
		require.NoError(t, s.Start(t.Context()))
		b := browse(t, s, panel.WithAuthorize(anyone))
		require.Eventually(t, func() bool { return strings.Contains(b.get("."), "refused") }, 60*time.Second, 50*time.Millisecond)
		for _, path := range []string{".", "dead", fmt.Sprint("dead/", number), "event?id=e", "event?id=p"} {
			page := b.get(path)
			for _, part := range []string{"secret", "password", "Bearer", "whsec", secret[len(secret)-8:]} {
				require.NotContains(t, page, part, path)
			}
		}
		require.Contains(t, b.get(fmt.Sprint("dead/", number)), "PUT to parked.example; it cannot be replayed: its body could be read only once, and was not kept")
	})
}

func TestB64NothingIsRegisteredByImport(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/", "/dead", "/webhooks/", "/hooks/"} {
		_, pattern := http.DefaultServeMux.Handler(httptest.NewRequest(http.MethodGet, path, nil))
		require.Empty(t, pattern, path)
	}
}

func TestB64ErrorsOfTheStoreAreLoggedAndNotShown(t *testing.T) {
	onEngines(t, func(t *testing.T, s store) {
		var log bytes.Buffer
		b := browse(t, s, panel.WithAuthorize(anyone), panel.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		s.bury(t, failed("e", "acme"))
		token := first(t, tokens, b.get("dead"))
		require.NoError(t, s.Close())
		for _, path := range []string{".", "dead", "dead/1", "event?id=e"} {
			log.Reset()
			resp, text := b.do(http.MethodGet, path, nil)
			require.Equal(t, 500, resp.StatusCode, path)
			require.Equal(t, "the store cannot be read; see the log\n", text, path)
			require.Contains(t, log.String(), "closed", path)
		}
		resp, text := b.do(http.MethodPost, "dead/1/replay", url.Values{"token": {token}})
		require.Equal(t, 500, resp.StatusCode)
		require.Equal(t, "the store cannot be read; see the log\n", text)
	})
}

func TestReplayNeedsAuthorityAndAFormOfThePanel(t *testing.T) {
	onEngines(t, func(t *testing.T, s store) {
		s.put(t, "acme", "https://acme.example/hook")
		number := s.bury(t, failed("e", "acme"))[0]
		path := fmt.Sprintf("dead/%d/replay", number)
		allowed := true
		b := browse(t, s, panel.WithAuthorize(func(*http.Request) bool { return allowed }))
		b.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		readOnly := browse(t, s)
		other := browse(t, s, panel.WithAuthorize(anyone)) // another process
		token := first(t, tokens, b.get("dead"))
		good := url.Values{"token": {token}}
		require.NotContains(t, readOnly.get("dead"), "replay")
		origin := strings.TrimSuffix(b.base, "/hooks/")
		for _, c := range []struct {
			why     string
			b       *browser
			form    url.Values
			header  []string
			refused bool
		}{
			{"no form", b, nil, nil, true},
			{"no token", b, url.Values{}, nil, true},
			{"an empty token", b, url.Values{"token": {""}}, nil, true},
			{"a wrong token", b, url.Values{"token": {"x" + token[1:] + "x"}}, nil, true},
			{"a cut token", b, url.Values{"token": {token[:len(token)-1]}}, nil, true},
			{"the token of another process", b, url.Values{"token": {first(t, tokens, other.get("dead"))}}, nil, true},
			{"another browser's cookie", browse(t, s, panel.WithAuthorize(anyone)), good, nil, true},
			{"a page elsewhere", b, good, []string{"Sec-Fetch-Site", "cross-site"}, true},
			{"another subdomain", b, good, []string{"Sec-Fetch-Site", "same-site"}, true},
			{"another origin", b, good, []string{"Origin", "https://evil.example"}, true},
			{"no origin at all", b, good, []string{"Origin", "null"}, true},
			{"another port", b, good, []string{"Origin", "http://127.0.0.1:1"}, true},
			{"a long form", b, url.Values{"x": {strings.Repeat("x", 5000)}, "token": {token}}, nil, true},
			{"nobody who authorizes", readOnly, good, nil, true},
			{"the panel's own form", b, good, []string{"Sec-Fetch-Site", "same-origin", "Origin", origin}, false},
		} {
			resp, text := c.b.do(http.MethodPost, path, c.form, c.header...)
			d, err := s.Dead().Get(t.Context(), number)
			require.NoError(t, err)
			if c.refused {
				require.Equal(t, http.StatusForbidden, resp.StatusCode, c.why)
				require.Equal(t, deliver.StateDead, d.State, c.why)
				continue
			}
			require.Equal(t, http.StatusSeeOther, resp.StatusCode, text)
			require.Equal(t, deliver.StateReplayed, d.State, c.why)
		}
		// The token in the URL is no token, and authority that was taken away is gone.
		resp, _ := b.do(http.MethodPost, path+"?token="+token, url.Values{})
		require.Equal(t, http.StatusForbidden, resp.StatusCode)
		allowed = false
		resp, _ = b.do(http.MethodPost, path, good)
		require.Equal(t, http.StatusForbidden, resp.StatusCode)
		require.NotContains(t, b.get("dead"), "replay")
	})
}

func TestTheCookieServesTheWholePanelAndNobodyElse(t *testing.T) {
	t.Parallel()
	s := open(t, "sqlite")
	h := panel.Handler(s, panel.WithAuthorize(anyone))
	for _, target := range []string{"http://a.example/dead", "https://a.example/dead"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, target, nil))
		c := w.Result().Cookies()
		require.Len(t, c, 1)
		require.Equal(t, "/", c[0].Path)
		require.True(t, c[0].HttpOnly)
		require.Equal(t, http.SameSiteStrictMode, c[0].SameSite)
		require.Equal(t, strings.HasPrefix(target, "https"), c[0].Secure)
	}
	w := httptest.NewRecorder()
	panel.Handler(s).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/dead", nil))
	require.Empty(t, w.Result().Cookies(), "a panel that changes nothing needs none")
}

func TestWhatWasReplayedLeavesTheListAndIsRefusedTheNextTime(t *testing.T) {
	onEngines(t, func(t *testing.T, s store) {
		s.put(t, "acme", "https://acme.example/hook")
		ids := s.bury(t, failed("one", "acme"), failed("two", "acme"))
		b := browse(t, s, panel.WithAuthorize(anyone))
		page := b.get("dead?destination=acme")
		require.Equal(t, []string{fmt.Sprint(ids[1]), fmt.Sprint(ids[0])}, listed(page))
		form := url.Values{"token": {first(t, tokens, page)}}
		action := html.UnescapeString(first(t, regexp.MustCompile(`method="post" action="([^"]+)"`), page))
		require.Equal(t, fmt.Sprintf("./dead/%d/replay?destination=acme", ids[1]), action)

		resp, page := b.do(http.MethodPost, action, form)
		require.Equal(t, http.StatusOK, resp.StatusCode)
		require.Equal(t, fmt.Sprintf("/hooks/dead?destination=acme&note=replayed&of=%d", ids[1]), resp.Request.URL.RequestURI(), "back to the same filter")
		require.Contains(t, page, fmt.Sprintf("Dead letter %d is being delivered again.", ids[1]))
		require.Equal(t, []string{fmt.Sprint(ids[0])}, listed(page))

		_, page = b.do(http.MethodPost, action, form)
		require.Contains(t, page, fmt.Sprintf("Dead letter %d was replayed before; nothing was sent.", ids[1]))
		all, err := s.Status(t.Context(), "two")
		require.NoError(t, err)
		require.Len(t, all, 2)

		page = b.get(fmt.Sprint("dead/", ids[1]))
		require.Contains(t, page, "<dd>replayed</dd>")
		require.NotContains(t, page, "<form", "there is nothing left to replay")
		page = b.get("event?id=two")
		require.Contains(t, page, fmt.Sprintf(`replays <a href="./dead/%d">%d</a>`, ids[1], ids[1]))

		resp, _ = b.do(http.MethodPost, "dead/999999/replay", form)
		require.Equal(t, http.StatusNotFound, resp.StatusCode)
	})
}

func TestWhatWasDeliveredSinceOrHasNoBodyIsNotReplayed(t *testing.T) {
	onEngines(t, func(t *testing.T, s store) {
		up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		defer up.Close()
		s.put(t, "acme", up.URL)
		number := s.bury(t, failed("e", "acme"))[0]
		_, err := s.Dead().Replay(t.Context(), []int64{number}, deliver.Replaying{})
		require.NoError(t, err)
		require.NoError(t, s.Start(t.Context()))
		require.Eventually(t, func() bool {
			all, err := s.Status(t.Context(), "e")
			return err == nil && slices.ContainsFunc(all, func(d deliver.Status) bool { return d.State == deliver.StateDelivered })
		}, 60*time.Second, 20*time.Millisecond)
		s.exec(t, "DELETE FROM retrip_replay") // as if another queue had delivered it
		lost := failed("l", "lost.example")
		lost.Parked = &deliver.Parked{Method: "POST", URL: "https://lost.example/", Lost: "its body could be read only once, and was not kept"}
		nobody := s.bury(t, lost)[0]

		b := browse(t, s, panel.WithAuthorize(anyone))
		page := b.get("dead")
		require.Len(t, tokens.FindAllString(page, -1), 1, "no button for what cannot be replayed")
		form := url.Values{"token": {first(t, tokens, page)}}
		_, page = b.do(http.MethodPost, fmt.Sprintf("dead/%d/replay", number), form)
		require.Contains(t, page, fmt.Sprintf("Dead letter %d was not replayed: its event has been delivered since.", number))
		_, page = b.do(http.MethodPost, fmt.Sprintf("dead/%d/replay", nobody), form)
		require.Contains(t, page, fmt.Sprintf("Dead letter %d cannot be replayed: its body was not kept.", nobody))
	})
}

func TestNotesAreNotTheURLs(t *testing.T) {
	t.Parallel()
	b := browse(t, open(t, "sqlite"))
	for _, q := range []string{"note=evil&of=1", "note=replayed", "note=replayed&of=<b>", "note=replayed&of=-1", "note=&of=1"} {
		require.NotContains(t, b.get("dead?"+q), `role="status"`, q)
	}
	require.Contains(t, b.get("dead?note=replayed&of=7"), "Dead letter 7 is being delivered again.")
}

func TestOnlyTheMethodsThatAreMeant(t *testing.T) {
	t.Parallel()
	s := open(t, "sqlite")
	number := s.bury(t, failed("e", "acme"))[0]
	letter := fmt.Sprint("dead/", number)
	b := browse(t, s, panel.WithAuthorize(anyone))
	for _, path := range []string{".", "dead", letter, "event?id=e", "style.css", letter + "/replay"} {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"} {
			want := http.StatusMethodNotAllowed
			switch isForm := strings.HasSuffix(path, "/replay"); {
			case isForm && method == "POST":
				want = http.StatusForbidden
			case !isForm && (method == "GET" || method == "HEAD"):
				want = http.StatusOK
			}
			resp, text := b.do(method, path, nil)
			require.Equal(t, want, resp.StatusCode, "%s %s", method, path)
			if want == http.StatusMethodNotAllowed {
				require.NotEmpty(t, resp.Header.Get("Allow"))
			}
			if method == "HEAD" {
				require.Empty(t, text)
			}
		}
	}
	d, err := s.Dead().Get(t.Context(), number)
	require.NoError(t, err)
	require.Equal(t, deliver.StateDead, d.State)
}

func TestWhatIsNotThereIsNotFound(t *testing.T) {
	onEngines(t, func(t *testing.T, s store) {
		s.put(t, "acme", "https://acme.example/hook")
		r, err := s.Send(t.Context(), deliver.Event{ID: "waiting", To: []string{"acme"}})
		require.NoError(t, err)
		b := browse(t, s, panel.WithAuthorize(anyone))
		for _, path := range []string{
			"dead/999999", "dead/0", "dead/-1", "dead/x", "dead/1e3", "dead/9223372036854775808", "dead/%00", "dead/1/", "dead/", "event?id=no", "event", "no",
			fmt.Sprint("dead/", r.Deliveries[0].ID), // is under way
		} {
			resp, _ := b.do(http.MethodGet, path, nil)
			require.Equal(t, http.StatusNotFound, resp.StatusCode, path)
		}
		for _, path := range []string{"dead/x/replay", "dead/0/replay", "dead/9223372036854775808/replay"} {
			resp, _ := b.do(http.MethodPost, path, url.Values{})
			require.Equal(t, http.StatusNotFound, resp.StatusCode, path)
		}
	})
}

func TestBadFiltersAreTheReadersFault(t *testing.T) {
	onEngines(t, func(t *testing.T, s store) {
		b := browse(t, s, discard())
		for _, q := range []string{
			"since=x", "since=-1h", "since=0s", "since=24", "since=99999999999h", "before=x", "before=0", "before=-1", "before=1.5", "before=9223372036854775808",
			"reason=none", "reason=gone'--", "destination=%00", "destination=%ff", "event=a%00b", "event=%c3%28", "event=" + strings.Repeat("x", 256), "destination=a%0ab",
		} {
			resp, text := b.do(http.MethodGet, "dead?"+q, nil)
			require.Equal(t, http.StatusBadRequest, resp.StatusCode, q)
			require.NotContains(t, text, "'--")
		}
		for _, q := range []string{
			"since=1ns", "since=2562047h", "before=9223372036854775807", "reason=gone", "destination=%27+OR+1=1--", "event=%25", "event=" + strings.Repeat("x", 255), "x=y", "before=",
			"destination=@since", "destination=$1", "since=1h&destination=a&event=b&reason=gone&before=5",
		} {
			require.Empty(t, listed(b.get("dead?"+q)), q)
		}
		resp, _ := b.do(http.MethodGet, "event?id=%00", nil)
		require.Equal(t, http.StatusBadRequest, resp.StatusCode)
	})
}

func TestFiltersChoose(t *testing.T) {
	onEngines(t, func(t *testing.T, s store) {
		old := failed("one", "acme")
		old.Died = time.Now().Add(-48 * time.Hour)
		gone := failed("two", "acme")
		gone.Reason = deliver.ReasonGone
		ids := s.bury(t, old, gone, failed("two", "beta"), failed("three", "beta"))
		b := browse(t, s)
		for q, want := range map[string][]int{
			"": {3, 2, 1, 0}, "destination=acme": {1, 0}, "event=two": {2, 1}, "reason=gone": {1}, "since=24h": {3, 2, 1},
			"destination=beta&event=two": {2}, "destination=acme&since=24h": {1}, "reason=permanent&destination=acme": {0}, "reason=gone&destination=beta": nil,
			fmt.Sprint("before=", ids[2]): {1, 0}, fmt.Sprint("destination=acme&before=", ids[1]): {0}, "destination=nobody": nil,
		} {
			var numbers []string
			for _, i := range want {
				numbers = append(numbers, fmt.Sprint(ids[i]))
			}
			page := b.get("dead?" + q)
			require.Equal(t, numbers, listed(page), q)
			if !strings.Contains(q, "reason") && !strings.Contains(q, "before") {
				require.Contains(t, page, fmt.Sprintf("<p>%d %s.", len(want), map[bool]string{true: "in all", false: "with this filter"}[q == ""]), q)
			}
		}
		page := b.get("dead?destination=acme&event=t%26o&reason=gone&since=24h")
		for _, part := range []string{`value="acme"`, `value="t&amp;o"`, `<option selected>gone</option>`, `value="24h"`} {
			require.Contains(t, page, part, "the form keeps the filter")
		}
	})
}

func TestAnEventShowsAllItsDestinations(t *testing.T) {
	onEngines(t, func(t *testing.T, s store) {
		for _, id := range []string{"acme", "beta", "gamma"} {
			s.put(t, id, "https://"+id+".example/")
		}
		number := s.bury(t, failed("e/?&=", "delta"))[0]
		_, err := s.Send(t.Context(), deliver.Event{ID: "e/?&=", To: []string{"acme", "beta", "gamma"}})
		require.NoError(t, err)
		b := browse(t, s)
		link := html.UnescapeString(first(t, regexp.MustCompile(`class="id" href="([^"]+)"`), b.get("dead")))
		page := b.get(link)
		require.Contains(t, page, "<h1>Event e/?&amp;=</h1>")
		for _, id := range []string{"acme", "beta", "gamma"} {
			require.Contains(t, page, "<td>"+id+"</td><td>waiting</td>")
		}
		require.Contains(t, page, fmt.Sprintf(`<a href="./dead/%d">%d</a>`, number, number))
		require.Equal(t, 3, strings.Count(b.get("."), `href="./event?id=e%2f%3f%26%3d"`))
	})
}

func TestPagesLeadToTheLast(t *testing.T) {
	onEngines(t, func(t *testing.T, s store) {
		const all = 123
		var letters []letter
		for i := range all {
			l := failed(fmt.Sprint("e", i), "acme & sons")
			if i%3 > 0 {
				l.Reason = deliver.ReasonGone
			}
			letters = append(letters, l)
		}
		ids := s.bury(t, letters...)
		b := browse(t, s)
		next := regexp.MustCompile(`rel="next" href="([^"]+)"`)
		for q, pages := range map[string][]int{"": {50, 50, 23}, "destination=acme+%26+sons": {50, 50, 23}, "reason=gone": {50, 32}, "reason=permanent&destination=acme+%26+sons&since=1h": {41}} {
			var numbers []string
			path := "dead?" + q
			for i, size := range pages {
				page := b.get(path)
				require.Len(t, listed(page), size, path)
				numbers = append(numbers, listed(page)...)
				if i == len(pages)-1 {
					require.NotRegexp(t, next, page, path)
				} else {
					path = html.UnescapeString(first(t, next, page))
				}
			}
			require.True(t, slices.IsSortedFunc(numbers, func(a, b string) int { return strings.Compare(fmt.Sprintf("%9s", b), fmt.Sprintf("%9s", a)) }))
			require.Len(t, slices.Compact(numbers), len(numbers))
			if q == "" {
				require.Equal(t, fmt.Sprint(ids[0]), numbers[all-1])
			}
		}
		// 100 and 23 more: a page that ends exactly has no empty one after it.
		require.NotRegexp(t, next, b.get(fmt.Sprint("dead?before=", ids[50])))
	})
}

func TestARareReasonIsSoughtThroughAThousandAtATime(t *testing.T) {
	onEngines(t, func(t *testing.T, s store) {
		rare := failed("rare", "acme")
		rare.Reason = deliver.ReasonGone
		s.bury(t, rare)
		s.many(t, 1100)
		b := browse(t, s)
		page := b.get("dead?reason=gone")
		require.Empty(t, listed(page))
		require.Contains(t, page, "None among the 1000 looked through.")
		page = b.get(html.UnescapeString(first(t, regexp.MustCompile(`rel="next" href="([^"]+)"`), page)))
		require.Len(t, listed(page), 1)
		require.NotContains(t, page, "looked through")
	})
}

func TestNoGETChangesAnything(t *testing.T) {
	onEngines(t, func(t *testing.T, s store) {
		s.put(t, "acme", "https://acme.example/")
		number := s.bury(t, failed("e", "acme"), failed("f", "acme"))[0]
		_, err := s.Send(t.Context(), deliver.Event{ID: "g", To: []string{"acme"}})
		require.NoError(t, err)
		b := browse(t, s, panel.WithAuthorize(anyone))
		everything := func() (all []string) {
			for _, table := range []string{"river_job", "retrip_destination", "retrip_minute", "retrip_replay"} {
				all = append(all, s.query(t, "SELECT * FROM "+table+" ORDER BY 1")...)
			}
			return all
		}
		before := everything()
		require.NotEmpty(t, before)
		token := first(t, tokens, b.get("dead"))
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			for _, path := range []string{".", "dead", "dead?destination=acme", fmt.Sprint("dead/", number), fmt.Sprintf("dead/%d/replay?token=%s", number, token), "event?id=e", "event?id=g", "style.css"} {
				b.do(method, path, nil)
			}
		}
		require.Equal(t, before, everything())
	})
}

func TestMountedAnywhereItsLinksLeadHome(t *testing.T) {
	t.Parallel()
	s := open(t, "sqlite")
	s.put(t, "acme", "https://acme.example/")
	var letters []letter
	for i := range 10 {
		letters = append(letters, failed(fmt.Sprint("e", i), "acme"))
	}
	s.bury(t, letters...)
	h := panel.Handler(s, panel.WithAuthorize(anyone))
	tree := http.NewServeMux()
	tree.Handle("/a/", http.StripPrefix("/a", h))
	tree.Handle("/b/c/", http.StripPrefix("/b/c/", h)) // takes the slash as well
	tree.Handle("/d%20e/", http.StripPrefix("/d e", h))
	bare := http.StripPrefix("/f/g", h) // no mux that mends the missing slash
	for _, c := range []struct {
		h           http.Handler
		path, start string
	}{
		{h, "/", "/"}, {tree, "/a/", "/a/"}, {tree, "/a", "/a/"}, {tree, "/b/c/", "/b/c/"}, {tree, "/b/c", "/b/c/"}, {tree, "/d%20e", "/d%20e/"}, {bare, "/f/g", "/f/g/"}, {bare, "/f/g/", "/f/g/"},
	} {
		b := visit(t, c.h, c.path)
		resp, _ := b.do(http.MethodGet, c.path, nil)
		require.Equal(t, c.start, resp.Request.URL.EscapedPath(), c.path)
		home, seen, forms := resp.Request.URL, map[string]bool{}, 0
		for queue := []string{home.String()}; len(queue) > 0 && len(seen) < 9; queue = queue[1:] {
			if seen[queue[0]] {
				continue
			}
			seen[queue[0]] = true
			resp, text := b.do(http.MethodGet, queue[0], nil)
			require.Equal(t, http.StatusOK, resp.StatusCode, queue[0])
			for _, m := range links.FindAllStringSubmatch(text, -1) {
				to, err := resp.Request.URL.Parse(html.UnescapeString(m[1]))
				require.NoError(t, err)
				if to.Scheme == "data" {
					continue
				}
				require.True(t, strings.HasPrefix(to.EscapedPath(), c.start), "%s on %s", to, queue[0])
				if strings.HasSuffix(to.Path, "/replay") {
					if forms++; forms == 1 {
						resp, _ := b.do(http.MethodPost, to.String(), url.Values{"token": {first(t, tokens, text)}})
						require.Equal(t, http.StatusOK, resp.StatusCode)
						require.Equal(t, c.start+"dead", resp.Request.URL.EscapedPath())
					}
					continue
				}
				queue = append(queue, to.String())
			}
		}
		require.Len(t, seen, 9, c.path)
		require.NotZero(t, forms, c.path)
	}
}

func TestTheMissingSlashLeadsNowhereElse(t *testing.T) {
	t.Parallel()
	h := http.StripPrefix("//evil.example", panel.Handler(open(t, "sqlite")))
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "http://a.example//evil.example", nil)
	r.RequestURI = "//evil.example"
	h.ServeHTTP(w, r)
	to, err := r.URL.Parse(w.Header().Get("Location"))
	require.NoError(t, err)
	require.Equal(t, "a.example", to.Host)
}

func TestPayloadsAreCutAndShownAsTheyAre(t *testing.T) {
	onEngines(t, func(t *testing.T, s store) {
		snowman := strings.Repeat("☃", 2000) // 4096 is in the middle of one
		b := browse(t, s)
		for name, c := range map[string]struct {
			payload string
			want    string
		}{
			"short":             {`{"a":"<b>"}`, `{"a":"<b>"}`},
			"empty":             {"", ""},
			"with line ends":    {"a\r\n\tb", "a\r\n\tb"},
			"just short enough": {strings.Repeat("x", 4096), strings.Repeat("x", 4096)},
			"a byte too long":   {strings.Repeat("x", 4097), strings.Repeat("x", 4096) + "\n… the first 4096 of 4097 bytes"},
			"cut within a rune": {snowman, strings.Repeat("☃", 1365) + "\n… the first 4095 of 6000 bytes"},
			"with NUL":          {"ab\x00<c", "00000000  61 62 00 3c 63                                    |ab.<c|\n"},
			"binary":            {"\xff\xfe\xfd", "00000000  ff fe fd                                          |...|\n"},
			"an escape":         {"\x1b[31m", "00000000  1b 5b 33 31 6d                                    |.[31m|\n"},
			"half a rune":       {"a\xe2\x98", "00000000  61 e2 98                                          |a..|\n"},
		} {
			l := failed(strings.ReplaceAll(name, " ", "-"), "acme")
			l.Payload = []byte(c.payload)
			page := b.get(fmt.Sprint("dead/", s.bury(t, l)[0]))
			require.Equal(t, c.want, html.UnescapeString(first(t, regexp.MustCompile(`(?s)<pre [^>]*>(.*)</pre>`), page)), name)
			require.Contains(t, page, fmt.Sprintf("<small>%d bytes", len(c.payload)), name)
		}
		l := failed("long", "acme")
		l.Payload = bytes.Repeat([]byte{0, 1, 2, 3}, 1<<16)
		page := b.get(fmt.Sprint("dead/", s.bury(t, l)[0]))
		require.Less(t, len(page), 40<<10)
		require.Contains(t, page, "00000ff0  00 01 02 03")
		require.Contains(t, page, "… the first 4096 of 262144 bytes")
		require.NotContains(t, page, "00001000")
	})
}

func TestLongStoriesAreCut(t *testing.T) {
	t.Parallel()
	s := open(t, "sqlite")
	l := failed("e", "acme")
	l.Attempts = nil
	for n := range 110 {
		l.Attempts = append(l.Attempts, deliver.Attempt{Number: n + 1, At: time.Now(), Err: strings.Repeat("☃", 1000)})
	}
	number := s.bury(t, l)[0]
	b := browse(t, s)
	page := b.get(fmt.Sprint("dead/", number))
	require.Contains(t, page, "110 of 110, the last 100")
	require.NotContains(t, page, `<th scope="row">10</th>`)
	require.Contains(t, page, `<th scope="row">11</th>`)
	require.Contains(t, page, strings.Repeat("☃", 66)+"…")
	require.NotContains(t, page, strings.Repeat("☃", 67))
	require.Less(t, len(b.get("dead")), 20<<10)
}

func TestTheListDoesNotLoadElsewhere(t *testing.T) {
	t.Parallel()
	s := open(t, "sqlite")
	resp, err := http.Get(browse(t, s).base + "style.css")
	require.NoError(t, err)
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, "text/css; charset=utf-8", resp.Header.Get("Content-Type"))
	require.NotRegexp(t, `(?i)url\(|@import|//`, string(text))
}
