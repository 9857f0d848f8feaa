package retrip_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/stretchr/testify/require"
)

func TestARequestThatSucceedsAtOnceIsTheCallersOwn(t *testing.T) {
	t.Parallel()
	base := play(answer(200))
	req := request(t, http.MethodGet, nil)
	resp, err := retrip.New(base).RoundTrip(req)
	require.NoError(t, err)
	require.Same(t, req, base.attempts()[0].req)
	require.Same(t, req, resp.Request)
	require.Equal(t, "x", finish(t, resp))
}

func TestAttemptsFollowTheBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := play(answer(503), answer(503), answer(200))
		rt := retrip.New(base, retrip.WithBackoff(retrip.Exponential(time.Second, time.Minute)))
		resp, err := rt.RoundTrip(request(t, http.MethodPut, strings.NewReader("hello")))
		require.NoError(t, err)
		require.Equal(t, 200, resp.StatusCode)
		require.Equal(t, []time.Duration{time.Second, 2 * time.Second}, base.pauses())
		for _, saw := range base.attempts() {
			require.Equal(t, "hello", saw.body)
		}
		require.Len(t, retrip.History(resp), 3)
	})
}
