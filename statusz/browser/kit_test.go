// Package browser_test tries the page of statusz in a real browser. It is a module of its
// own because what drives the browser is not for the root's go.mod.
package browser_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
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

// chrome starts a browser, for which status.test is this machine and all other names are
// not known.
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
		t.Skip("SKIPPED: no Chromium or Chrome is installed, so the page was not tried in a browser")
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.UserDataDir(t.TempDir()), chromedp.WSURLReadTimeout(60*time.Second),
		chromedp.Flag("host-resolver-rules", "MAP status.test 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
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
	}{{"light", "light", 1560}, {"dark", "dark", 1560}, {"narrow", "light", 390}} {
		_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: look.scheme}},
		})
		require.NoError(b.t, err)
		b.do(chromedp.EmulateViewport(look.width, 640))
		require.Equal(b.t, look.width, ask(b, chromedp.Evaluate[int64]("document.documentElement.scrollWidth")), "nothing sticks out")
		png := ask(b, chromedp.FullScreenshot(100))
		require.NoError(b.t, os.WriteFile(filepath.Join(dir, name+"-"+look.name+".png"), png, 0o600))
	}
	b.do(chromedp.EmulateViewport(1280, 800))
}
