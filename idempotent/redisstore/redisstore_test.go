package redisstore_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/retrip-go/retrip/idempotent"
	"github.com/retrip-go/retrip/idempotent/redisstore"
	"github.com/retrip-go/retrip/idempotent/storetest"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	storetest.Child(func(spec string) (http.Handler, error) {
		addr, prefix, _ := strings.Cut(spec, " ")
		return storetest.Stalling(redisstore.New(redis.NewClient(&redis.Options{Addr: addr}), prefix)), nil
	})
	os.Exit(m.Run())
}

func address(t testing.TB) string {
	t.Helper()
	addr := os.Getenv("RETRIP_TEST_REDIS")
	if addr == "" {
		require.NotEqual(t, "required", os.Getenv("RETRIP_TEST_SERVICES"), "there is no Redis")
		t.Skip("SKIPPED: no Redis; .ci/services starts one, RETRIP_TEST_REDIS names it")
	}
	return addr
}

func connect(t testing.TB, opts *redis.Options) *redis.Client {
	t.Helper()
	client := redis.NewClient(opts)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}

// fresh has keys of its own, whose names hold what SCAN takes for a pattern.
func fresh(t testing.TB) (*redis.Client, string) {
	t.Helper()
	return connect(t, &redis.Options{Addr: address(t)}), "te?t[" + rand.Text() + "]*\\:"
}

type operator struct{ *redisstore.Store }

func (o operator) Lost(ctx context.Context, n int) ([]string, error) {
	all, err := o.Store.Lost(ctx, n)
	var names []string
	for _, l := range all {
		if !l.Since.Before(l.Expires) || time.Until(l.Expires) > 24*time.Hour {
			return nil, fmt.Errorf("%+v", l)
		}
		names = append(names, l.Key)
	}
	return names, err
}

func claim(owner string) idempotent.Claim {
	return idempotent.Claim{Owner: owner, Fingerprint: "print", Lease: time.Minute, TTL: time.Hour}
}

func state(t *testing.T, s idempotent.Store, key, owner string) idempotent.State {
	t.Helper()
	v, err := s.Begin(t.Context(), key, claim(owner))
	require.NoError(t, err)
	return v.State
}

func TestRedisKeepsTheContract(t *testing.T) {
	t.Parallel()
	client, prefix := fresh(t)
	storetest.Claims(t, func(*testing.T) idempotent.Store { return redisstore.New(client, prefix) })
}

func TestAKilledServersKeyIsRefusedUntilSomeoneDecides(t *testing.T) {
	t.Parallel()
	client, prefix := fresh(t)
	s := redisstore.New(client, prefix)
	storetest.Crash(t, client.Options().Addr+" "+prefix, s, operator{s})
}

func TestPrefixesKeepKeysApart(t *testing.T) {
	t.Parallel()
	client, prefix := fresh(t)
	one, two := redisstore.New(client, prefix+"1:"), redisstore.New(client, prefix+"2:")
	require.Equal(t, idempotent.Claimed, state(t, one, "key", "one"))
	require.Equal(t, idempotent.Claimed, state(t, two, "key", "one"))
	require.PanicsWithValue(t, "redisstore: New(nil): no client", func() { redisstore.New(nil, "") })
}

func TestAFlushedScriptCacheIsNoError(t *testing.T) {
	t.Parallel()
	client, prefix := fresh(t)
	s := redisstore.New(client, prefix)
	for i, step := range []func() error{
		func() error { _, err := s.Begin(t.Context(), "key", claim("one")); return err },
		func() error { return s.Renew(t.Context(), "key", "one", time.Minute) },
		func() error { return s.Finish(t.Context(), "key", "one", idempotent.Record{Status: 200}, time.Hour) },
		func() error { _, err := s.Begin(t.Context(), "other", claim("one")); return err },
		func() error { return s.Abandon(t.Context(), "other", "one") },
		func() error { _, err := s.Forget(t.Context(), "other"); return err },
		func() error { _, err := s.Lost(t.Context(), 1); return err },
	} {
		require.NoError(t, client.ScriptFlush(t.Context()).Err())
		require.NoError(t, step(), "step %d", i)
	}
}

// A lossy connection loses one answer, after the command went out.
type lossy struct {
	net.Conn
	armed *atomic.Bool
}

func (c lossy) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == nil && c.armed.CompareAndSwap(true, false) {
		return 0, errors.Join(net.ErrClosed, c.Close())
	}
	return n, err
}

// lossyStore has a connection that loses one answer when it is armed.
func lossyStore(t *testing.T) (s *redisstore.Store, armed *atomic.Bool) {
	t.Helper()
	armed = new(atomic.Bool)
	client := connect(t, &redis.Options{Addr: address(t), Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		return lossy{c, armed}, err
	}})
	s = redisstore.New(client, "lossy-"+rand.Text())
	require.Equal(t, idempotent.Claimed, state(t, s, "warm", "one"))
	return s, armed
}

// The client sends a script again whose answer it did not get: what was done for the owner
// is no reason to tell it that the key is another's.
func TestAStepWhoseAnswerGetsLostIsNoFailure(t *testing.T) {
	t.Parallel()
	s, armed := lossyStore(t)
	r := idempotent.Record{Status: 201, Body: []byte("done")}
	for i, step := range []func(key string) error{
		func(key string) error { return s.Renew(t.Context(), key, "one", time.Minute) },
		func(key string) error { return s.Finish(t.Context(), key, "one", r, time.Hour) },
		func(key string) error { return s.Abandon(t.Context(), key, "one") },
	} {
		key := fmt.Sprint("key-", i)
		require.Equal(t, idempotent.Claimed, state(t, s, key, "one"))
		require.NoError(t, step(key)) // its script is there
		require.NoError(t, s.Abandon(t.Context(), "not there", "one"))
		key += "-lossy"
		require.Equal(t, idempotent.Claimed, state(t, s, key, "one"))
		armed.Store(true)
		require.NoError(t, step(key), "step %d", i)
		require.False(t, armed.Load())
		require.Equal(t, []idempotent.State{idempotent.Running, idempotent.Done, idempotent.Claimed}[i], state(t, s, key, "two"))
	}
	require.ErrorIs(t, s.Abandon(t.Context(), "key-1-lossy", "one"), idempotent.ErrNotOwner)
}

func TestAClaimWhoseAnswerGetsLostIsTheOwners(t *testing.T) {
	t.Parallel()
	s, armed := lossyStore(t)
	armed.Store(true)
	require.Equal(t, idempotent.Claimed, state(t, s, "key", "one"))
	require.False(t, armed.Load())
	require.Equal(t, idempotent.Running, state(t, s, "key", "two"))
	require.NoError(t, s.Finish(t.Context(), "key", "one", idempotent.Record{Status: 200}, time.Hour))
	require.Equal(t, idempotent.Done, state(t, s, "key", "one"))
}

func TestKeysExpireInRedisByThemselves(t *testing.T) {
	t.Parallel()
	client, prefix := fresh(t)
	s := redisstore.New(client, prefix)
	ttl := func() time.Duration {
		t.Helper()
		d, err := client.PTTL(t.Context(), prefix+"key").Result()
		require.NoError(t, err)
		return d
	}
	c := claim("one")
	c.TTL = time.Second
	_, err := s.Begin(t.Context(), "key", c)
	require.NoError(t, err)
	require.Greater(t, ttl(), time.Second) // as long as the lease
	require.NoError(t, s.Renew(t.Context(), "key", "one", time.Hour))
	require.Greater(t, ttl(), 59*time.Minute)
	require.NoError(t, s.Finish(t.Context(), "key", "one", idempotent.Record{Status: 200}, 30*time.Minute))
	require.Greater(t, ttl(), 29*time.Minute)
	require.LessOrEqual(t, ttl(), 30*time.Minute)
}

// server starts a Redis of the test's own, which can be restarted.
func server(t *testing.T, settings ...string) (addr string, restart func()) {
	t.Helper()
	address(t) // where that is a Redis, its program is too
	dir := t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr = l.Addr().String()
	require.NoError(t, l.Close())
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	var cmd *exec.Cmd
	start := func() {
		cmd = exec.Command("redis-server", append([]string{"--bind", "127.0.0.1", "--port", port, "--dir", dir, "--save", ""}, settings...)...)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := bufio.NewScanner(out)
		for ready := false; !ready; {
			require.True(t, lines.Scan(), "it ends before it is ready")
			ready = strings.Contains(lines.Text(), "Ready to accept connections")
		}
		go func() {
			for lines.Scan() { // or it would wait for a reader
			}
		}()
	}
	stop := func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	start()
	t.Cleanup(func() { stop() })
	return addr, func() { stop(); start() }
}

func TestARedisThatIsKilledKeepsWhatItAppended(t *testing.T) {
	t.Parallel()
	addr, restart := server(t, "--appendonly", "yes", "--appendfsync", "always")
	s := redisstore.New(connect(t, &redis.Options{Addr: addr}), "")
	require.Equal(t, idempotent.Claimed, state(t, s, "done", "one"))
	require.NoError(t, s.Finish(t.Context(), "done", "one", idempotent.Record{Status: 200}, time.Hour))
	require.Equal(t, idempotent.Claimed, state(t, s, "running", "one"))
	restart()
	require.Equal(t, idempotent.Done, state(t, s, "done", "two"))
	require.Equal(t, idempotent.Running, state(t, s, "running", "two"))
	require.NoError(t, s.Finish(t.Context(), "running", "one", idempotent.Record{Status: 200}, time.Hour))
}

// As the package's documentation says: it is no promise of ours that Redis remembers.
func TestARedisThatKeepsNothingForgetsWithARestart(t *testing.T) {
	t.Parallel()
	addr, restart := server(t)
	s := redisstore.New(connect(t, &redis.Options{Addr: addr}), "")
	require.Equal(t, idempotent.Claimed, state(t, s, "key", "one"))
	restart()
	require.Equal(t, idempotent.Claimed, state(t, s, "key", "two"))
	require.ErrorIs(t, s.Finish(t.Context(), "key", "one", idempotent.Record{}, time.Hour), idempotent.ErrNotOwner)
}

func TestAFullRedisRefusesRatherThanForgets(t *testing.T) {
	t.Parallel()
	addr, _ := server(t, "--maxmemory-policy", "noeviction")
	client := connect(t, &redis.Options{Addr: addr})
	s := redisstore.New(client, "")
	require.Equal(t, idempotent.Claimed, state(t, s, "first", "one"))
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "1").Err())
	_, err := s.Begin(t.Context(), "second", claim("one"))
	require.ErrorContains(t, err, "redisstore: OOM")
	require.ErrorContains(t, s.Renew(t.Context(), "first", "one", time.Minute), "OOM")
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "0").Err())
	require.Equal(t, idempotent.Running, state(t, s, "first", "two"))
}

// A cluster refuses scripts whose keys are on different nodes, or are not named.
func TestAClusterTakesEveryScript(t *testing.T) {
	t.Parallel()
	addr, _ := server(t, "--cluster-enabled", "yes")
	require.NoError(t, connect(t, &redis.Options{Addr: addr}).ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	require.Eventually(t, func() bool {
		info, err := client.ClusterInfo(t.Context()).Result()
		return err == nil && strings.Contains(info, "cluster_state:ok")
	}, 30*time.Second, 20*time.Millisecond)
	s := redisstore.New(client, "idempotency:")
	storetest.Claims(t, func(*testing.T) idempotent.Store { return s })

	dead := claim("one")
	dead.Lease = 0
	_, err := s.Begin(t.Context(), "lost", dead)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		names, err := operator{s}.Lost(t.Context(), 100)
		return err == nil && strings.Contains(strings.Join(names, " "), "lost")
	}, 30*time.Second, 20*time.Millisecond)
	was, err := s.Forget(t.Context(), "lost")
	require.NoError(t, err)
	require.True(t, was)
}

func stores(b *testing.B) map[string]idempotent.Store {
	b.Helper()
	client, prefix := fresh(b)
	return map[string]idempotent.Store{"redis": redisstore.New(client, prefix), "memory": idempotent.Memory(1 << 20)}
}

func BenchmarkFirst(b *testing.B)  { storetest.First(b, stores(b)) }
func BenchmarkReplay(b *testing.B) { storetest.Replay(b, stores(b)) }
