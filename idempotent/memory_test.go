package idempotent_test

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
	"weak"

	"github.com/retrip-go/retrip/idempotent"
	"github.com/retrip-go/retrip/idempotent/storetest"
	"github.com/stretchr/testify/require"
)

func TestMemoryKeepsTheContract(t *testing.T) {
	t.Parallel()
	storetest.Claims(t, func(*testing.T) idempotent.Store { return idempotent.Memory(100) })
}

func TestMemoryForgetsTheAnswerUsedLongestAgo(t *testing.T) {
	t.Parallel()
	charges := say("done")
	h := idempotent.Handler(charges, idempotent.Memory(2))
	serve(h, post("a", ""))
	serve(h, post("b", ""))
	replays(t, serve(h, post("a", "")), http.StatusCreated, "done")
	serve(h, post("c", ""))
	replays(t, serve(h, post("a", "")), http.StatusCreated, "done")
	answers(t, serve(h, post("b", "")), http.StatusCreated, "done")
}

func TestMemoryNeverForgetsAKeyThatIsBeingWorked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		charges := count(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get(idempotent.KeyHeader) == "slow" {
				time.Sleep(48 * time.Hour)
			}
			w.WriteHeader(http.StatusCreated)
		})
		h := idempotent.Handler(charges, idempotent.Memory(1))
		go serve(h, post("slow", ""))
		synctest.Wait()
		for i := range 100 {
			serve(h, post(fmt.Sprint("other-", i), ""))
			time.Sleep(15 * time.Minute)
		}
		refuses(t, serve(h, post("slow", "")), http.StatusConflict, "running")
		time.Sleep(48 * time.Hour)
		serve(h, post("last", ""))
		require.EqualValues(t, 102, charges.runs.Load())
	})
}

func TestMemoryHoldsNoLockWhileAHandlerRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		meet := make(chan struct{})
		h := idempotent.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			select { // one gives, one takes: they run at once
			case meet <- struct{}{}:
			case <-meet:
			}
		}), idempotent.Memory(10))
		go serve(h, post("a", ""))
		require.Equal(t, http.StatusOK, serve(h, post("b", "")).StatusCode)
	})
}

// TestMemoryLetsGoOfWhatHasExpired, answers and lost claims, as others come.
func TestMemoryLetsGoOfWhatHasExpired(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 20
		ctx, memory := t.Context(), idempotent.Memory(1000)
		var held []weak.Pointer[byte]
		fill := func(i int) {
			c := idempotent.Claim{Owner: "owner", Fingerprint: strings.Repeat("p", 100+i), Lease: time.Second, TTL: time.Minute}
			body := make([]byte, 100)
			held = append(held, weak.Make(unsafe.StringData(c.Fingerprint)), weak.Make(&body[0]))
			_, err := memory.Begin(ctx, fmt.Sprint("lost-", i), c)
			require.NoError(t, err)
			c.Fingerprint = ""
			_, err = memory.Begin(ctx, fmt.Sprint("done-", i), c)
			require.NoError(t, err)
			require.NoError(t, memory.Finish(ctx, fmt.Sprint("done-", i), "owner", idempotent.Record{Body: body}, time.Minute))
		}
		for i := range n {
			fill(i)
		}
		left := func() (left int) {
			runtime.GC()
			for _, p := range held {
				if p.Value() != nil {
					left++
				}
			}
			return left
		}
		require.Equal(t, 2*n, left())
		time.Sleep(time.Minute)
		// Claims are looked at in random order, but none of 21 is missed 500 times.
		for range 500 {
			_, err := memory.Begin(ctx, "another", idempotent.Claim{Owner: "other", Lease: time.Hour, TTL: time.Hour})
			require.NoError(t, err)
		}
		require.Zero(t, left())
		runtime.KeepAlive(memory)
	})
}

func TestMemoryPanicsWithoutRoom(t *testing.T) {
	t.Parallel()
	require.PanicsWithValue(t, "idempotent: Memory(0): fewer than one answer", func() { idempotent.Memory(0) })
}
