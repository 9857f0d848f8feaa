package panel_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/retrip-go/retrip/deliver"
	"github.com/retrip-go/retrip/deliver/panel"
	"github.com/stretchr/testify/require"
)

// A tab is one of a real browser. It writes down what the browser complains about and
// where it goes.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu         sync.Mutex
	complaints []string
	requests   []string
}

// chrome starts a browser, for which panel.test is this machine: a name that, unlike
// localhost, plain HTTP is not thought safe for.
func chrome(t *testing.T) *tab {
	var program string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			program = found
			break
		}
	}
	if program == "" {
		require.NotEqual(t, "required", os.Getenv("RETRIP_TEST_SERVICES"), "there is no Chromium")
		t.Skip("SKIPPED: no Chromium or Chrome is installed, so the panel was not tried in a browser")
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.UserDataDir(t.TempDir()), chromedp.WSURLReadTimeout(60*time.Second),
		chromedp.Flag("host-resolver-rules", "MAP panel.test 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
		chromedp.Flag("disable-features", "HttpsUpgrades,HttpsFirstBalancedModeAutoEnable"),
	)
	if os.Geteuid() == 0 {
		opts = append(opts, chromedp.NoSandbox)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, opts...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b := &tab{t: t, ctx: ctx}
	require.NoError(t, chromedp.Listen(ctx, b.hear))
	return b
}

// hear is called with what happens in the tab.
func (b *tab) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *log.EventEntryAdded:
		b.complaints = append(b.complaints, fmt.Sprint(e.Entry.Level, ": ", e.Entry.Text, " ", e.Entry.URL))
	case *runtime.EventConsoleAPICalled:
		b.complaints = append(b.complaints, fmt.Sprint("console: ", e.Type))
	case *runtime.EventExceptionThrown:
		b.complaints = append(b.complaints, e.ExceptionDetails.Text)
	case *page.EventJavascriptDialogOpening:
		b.complaints = append(b.complaints, "dialog: "+e.Message)
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
	}
}

func (b *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	require.NoError(b.t, chromedp.Do(b.ctx, actions...))
}

// ask returns what an action finds out.
func ask[T any](b *tab, action chromedp.Action[T]) T {
	b.t.Helper()
	answer, err := chromedp.Run(b.ctx, action)
	require.NoError(b.t, err)
	return answer
}

// see waits until something is on the page.
func see(css string) chromedp.Action[chromedp.Void] { return chromedp.WaitVisible(chromedp.CSS(css)) }

// click clicks on it.
func click(css string) chromedp.Action[chromedp.Void] { return chromedp.Click(chromedp.CSS(css)) }

// text returns what the page says.
func (b *tab) text() string {
	b.t.Helper()
	return ask(b, chromedp.Text(chromedp.CSS("body")))
}

// shot keeps a picture, if RETRIP_TEST_SHOTS names a directory for them.
func (b *tab) shot(name string) {
	dir := os.Getenv("RETRIP_TEST_SHOTS")
	if dir == "" {
		return
	}
	for _, look := range []struct {
		name, scheme string
		width        int64
	}{{"light", "light", 1280}, {"dark", "dark", 1280}, {"narrow", "light", 390}} {
		_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: look.scheme}},
		})
		require.NoError(b.t, err)
		b.do(chromedp.EmulateViewport(look.width, 800))
		require.Equal(b.t, look.width, ask(b, chromedp.Evaluate[int64]("document.documentElement.scrollWidth")), "nothing sticks out")
		png := ask(b, chromedp.FullScreenshot(100))
		require.NoError(b.t, os.WriteFile(filepath.Join(dir, name+"-"+look.name+".png"), png, 0o600))
	}
	b.do(chromedp.EmulateViewport(1280, 800))
}

func TestInABrowserADeadLetterIsFoundReplayedAndGone(t *testing.T) {
	t.Parallel()
	b := chrome(t)
	s := open(t, "sqlite")
	down := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }))
	t.Cleanup(down.Close)
	s.put(t, "acme", down.URL)
	s.put(t, "held", "https://hooks.held.example/in")
	s.put(t, "beta", "https://beta.example/hook")
	s.put(t, "old-shop", "https://old-shop.example/hook")
	require.NoError(t, s.Destinations().Disable(t.Context(), "old-shop", "it answered 410 Gone"))
	require.NoError(t, s.Destinations().Pause(t.Context(), "held", time.Now().Add(time.Hour)))
	for i := range 4 {
		_, err := s.Send(t.Context(), deliver.Event{ID: fmt.Sprint("order-", i), To: []string{"acme"}, Payload: []byte("{}")})
		require.NoError(t, err)
	}
	minute := time.Now().Unix()/60 - 30
	s.exec(t, fmt.Sprintf(`INSERT INTO retrip_minute VALUES ('beta', %d, 12700, 410, 12290, 61, 3, 350), ('old-shop', %d, 40, 12, 28, 4, 2, 9)`, minute, minute))
	var letters []letter
	for i := range 60 {
		l := failed(fmt.Sprintf("0196c5a2-7f4e-7c31-9a55-%012d", i), []string{"acme", "beta"}[i%2])
		l.Died = time.Now().Add(time.Duration(i-60) * 31 * time.Minute)
		l.Payload = []byte("{\n  \"type\": \"order.paid\",\n  \"data\": {\"id\": \"1\", \"note\": \"<script>alert('payload')</script>\"}\n}")
		l.Attempts = append(l.Attempts, deliver.Attempt{Number: 2, At: time.Now(), Status: 503, Duration: 31 * time.Millisecond, Answer: `<img src=x onerror=alert("answer")>`},
			deliver.Attempt{Number: 3, At: time.Now(), Duration: 30 * time.Second, Err: "timed out"})
		letters = append(letters, l)
	}
	letters[59].Event = `"><script>alert("event")</script>`
	ids := s.bury(t, letters...)
	require.NoError(t, s.Start(t.Context()))

	mux := http.NewServeMux()
	mux.Handle("/hooks/", http.StripPrefix("/hooks", panel.Handler(s, panel.WithAuthorize(anyone))))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	site := strings.Replace(server.URL, "127.0.0.1", "panel.test", 1)
	require.Eventually(t, func() bool {
		d, err := s.Destinations().Get(t.Context(), "acme")
		return err == nil && d.Trips == 1
	}, 60*time.Second, 20*time.Millisecond)

	b.do(chromedp.Navigate(site + "/hooks"))
	require.Equal(t, site+"/hooks/", ask(b, chromedp.Location()))
	require.Contains(t, ask(b, chromedp.Evaluate[string](`getComputedStyle(document.querySelector(".id")).fontFamily`)), "monospace", "the style sheet is permitted")
	require.Regexp(t, `paused until [\d: -]+, trip 1 of 2, because 503 Service Unavailable`, b.text())
	b.shot("overview")

	b.do(chromedp.Navigate(site+"/hooks/dead"), see("form[role=search]"))
	require.Contains(t, b.text(), "60 in all")
	b.shot("dead")
	// Filter.
	wanted := letters[20].Event
	b.do(chromedp.SendKeys(chromedp.CSS("input[name=event]"), wanted), click("form[role=search] button"), see("form[role=search] a"))
	require.Contains(t, b.text(), "1 with this filter")
	require.Contains(t, b.text(), wanted)
	require.NotContains(t, b.text(), letters[22].Event)
	// Look at it.
	b.do(click("tbody th a"), see("pre"))
	text := b.text()
	require.Contains(t, text, fmt.Sprint("Dead letter ", ids[20]))
	require.Contains(t, text, "<script>alert('payload')</script>")
	require.Contains(t, text, `<img src=x onerror=alert("answer")>`)
	b.shot("letter")
	// Replay it, by its button in the filtered list, over plain HTTP at a plain name.
	b.do(chromedp.Navigate(site+"/hooks/dead?event="+wanted), click(fmt.Sprintf(`button[aria-label="Replay %d"]`, ids[20])), see("[role=status]"))
	text = b.text()
	require.Contains(t, text, fmt.Sprintf("Dead letter %d is being delivered again.", ids[20]))
	require.Contains(t, text, "0 with this filter")
	u, err := url.Parse(ask(b, chromedp.Location()))
	require.NoError(t, err)
	require.Equal(t, wanted, u.Query().Get("event"))
	b.shot("replayed")
	// It has left the whole list too, and its event tells of both deliveries.
	b.do(chromedp.Navigate(site+"/hooks/dead"), see("form[role=search]"))
	require.Contains(t, b.text(), "59 in all")
	b.do(chromedp.Navigate(site+"/hooks/event?id="+wanted), see("table"))
	require.Contains(t, b.text(), fmt.Sprint("replays ", ids[20]))
	b.shot("event")
	// The last page.
	b.do(chromedp.Navigate(site+"/hooks/dead"), click("a[rel=next]"), chromedp.WaitNotPresent(chromedp.CSS("a[rel=next]")), see("tbody th"))
	require.Contains(t, b.text(), letters[0].Event)

	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(t, b.complaints)
	require.NotEmpty(t, b.requests)
	for _, to := range b.requests {
		require.True(t, strings.HasPrefix(to, site+"/hooks") || to == "data:,", to)
	}
}

func TestInABrowserAReadOnlyPanelHasNoButtons(t *testing.T) {
	t.Parallel()
	b := chrome(t)
	s := open(t, "sqlite")
	s.bury(t, failed("e", "acme"))
	base := browse(t, s).base
	b.do(chromedp.Navigate(base+"dead"), see("tbody th"))
	buttons := ask(b, chromedp.Evaluate[[]string](`[...document.querySelectorAll("button")].map(b => b.textContent)`))
	require.Equal(t, []string{"Filter"}, buttons)
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(t, b.complaints)
}
