// Package redisstore keeps idempotency keys in Redis (5 or later, or what speaks its
// protocol and Lua): one hash for each key, and one script for each step, so that no
// other comes between.
//
// What it promises: work is done once as long as Redis keeps what it was told, over
// restarts of the server. If that dies in the middle of a handler the key is refused
// (see idempotent.TakeOver, and Store.Lost). Redis does not keep what it was told
//
//   - if it restarts, without appendonly yes and appendfsync always: the last second is
//     gone with everysec, all since the last snapshot without appendonly;
//   - if it fails over, by Sentinel or in a cluster, to a replica that is behind, which
//     can be any: replication is asynchronous;
//   - if it is full and maxmemory-policy is not noeviction: keys that are being worked
//     may go. With noeviction the claim fails, and the answer is 503.
//
// A key that was lost this way runs again. Where that is not good enough, use sqlstore.
//
// Time is that of the key's Redis server, so that the servers' clocks may differ. Redis
// removes what has expired by itself.
package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/retrip-go/retrip/idempotent"
)

// A Store is an idempotent.Store. It is safe for concurrent use.
type Store struct {
	client redis.UniversalClient
	prefix string
}

// New returns a store over client. The names of its keys begin with prefix, such as
// "idempotency:". On a cluster each key is on one node, as scripts need.
func New(client redis.UniversalClient, prefix string) *Store {
	if client == nil {
		panic("redisstore: New(nil): no client")
	}
	return &Store{client, prefix}
}

// A record is a hash: owner, print, leased (end of the lease, by Redis's clock in ms),
// and answer once there is one. A claim stays for its TTL also when its owner dies, and
// while its owner lives.
var (
	// begin returns {state, fingerprint, answer}. The client repeats it when a connection
	// breaks: the owner's second claim is its first.
	begin = redis.NewScript(now + `
		local r = redis.call('HMGET', KEYS[1], 'print', 'leased', 'answer', 'owner')
		if r[1] then
			if r[3] then return {3, r[1], r[3]} end
			local dead, after = now - tonumber(r[2]), tonumber(ARGV[5])
			if r[4] ~= ARGV[1] then
				if dead < 0 then return {1, r[1], ''} end
				if after < 0 or dead < after or r[1] ~= ARGV[2] then return {2, r[1], ''} end
			end
		end
		redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'print', ARGV[2], 'leased', string.format('%.0f', now + ARGV[3]))
		redis.call('PEXPIRE', KEYS[1], math.max(ARGV[3], ARGV[4]))
		return {0, ARGV[2], ''}`)

	renew = redis.NewScript(own + now + `
		redis.call('HSET', KEYS[1], 'leased', string.format('%.0f', now + ARGV[2]))
		if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
		return 1`)

	// finish and abandon, too, may come twice: what is already so is no error.
	finish = redis.NewScript(`
		local r = redis.call('HMGET', KEYS[1], 'owner', 'answer')
		if r[1] ~= ARGV[1] or r[2] and r[2] ~= ARGV[2] then return 0 end
		redis.call('HSET', KEYS[1], 'answer', ARGV[2])
		redis.call('PEXPIRE', KEYS[1], ARGV[3])
		return 1`)

	abandon = redis.NewScript(`
		if redis.call('EXISTS', KEYS[1]) == 0 then return 1 end` + own + `
		return redis.call('DEL', KEYS[1])`)
)

// now is Redis's clock.
const now = `
		local t = redis.call('TIME')
		local now = t[1] * 1000 + math.floor(t[2] / 1000)`

// own ends a script unless the claim is ARGV[1]'s.
const own = `
		local r = redis.call('HMGET', KEYS[1], 'owner', 'answer')
		if r[1] ~= ARGV[1] or r[2] then return 0 end`

// Begin claims the key.
func (s *Store) Begin(ctx context.Context, key string, c idempotent.Claim) (v idempotent.Verdict, err error) {
	takeOver := int64(-1)
	if c.TakeOver > 0 {
		takeOver = c.TakeOver.Milliseconds()
	}
	res, err := begin.Run(ctx, s.client, []string{s.prefix + key}, c.Owner, c.Fingerprint, c.Lease.Milliseconds(), c.TTL.Milliseconds(), takeOver).Slice()
	if err != nil {
		return v, fmt.Errorf("redisstore: %w", err)
	}
	if len(res) != 3 {
		return v, errors.New("redisstore: the script's answer cannot be read")
	}
	state, _ := res[0].(int64)
	answer, _ := res[2].(string)
	v.State = idempotent.State(state)
	v.Fingerprint, _ = res[1].(string)
	if v.State == idempotent.Done {
		err = v.Record.UnmarshalBinary([]byte(answer))
	}
	return v, err
}

func owned(cmd *redis.Cmd) error {
	n, err := cmd.Int()
	if err != nil {
		return fmt.Errorf("redisstore: %w", err)
	}
	if n == 0 {
		return idempotent.ErrNotOwner
	}
	return nil
}

// Renew says that the owner is alive.
func (s *Store) Renew(ctx context.Context, key, owner string, lease time.Duration) error {
	return owned(renew.Run(ctx, s.client, []string{s.prefix + key}, owner, lease.Milliseconds()))
}

// Finish stores the answer.
func (s *Store) Finish(ctx context.Context, key, owner string, r idempotent.Record, ttl time.Duration) error {
	answer, err := r.MarshalBinary()
	if err != nil {
		return err
	}
	return owned(finish.Run(ctx, s.client, []string{s.prefix + key}, owner, answer, ttl.Milliseconds()))
}

// Abandon forgets the key.
func (s *Store) Abandon(ctx context.Context, key, owner string) error {
	return owned(abandon.Run(ctx, s.client, []string{s.prefix + key}, owner))
}

// Lost is a key whose owner died.
type Lost struct {
	Key     string // as the store has it, without the prefix: a hash
	Since   time.Time
	Expires time.Time
}

// Lost returns up to n keys whose owner died, for an operator who finds out what became
// of the work, and then calls Forget. It looks at every key with the store's prefix, in
// no order, and at no other node than the client's own if that is not a ClusterClient.
func (s *Store) Lost(ctx context.Context, n int) ([]Lost, error) {
	var mu sync.Mutex
	var all []Lost
	scan := func(ctx context.Context, node *redis.Client) error {
		seen := make(map[string]bool) // SCAN may give a key twice
		keys := node.Scan(ctx, 0, glob.Replace(s.prefix)+"*", 1000).Iterator()
		for keys.Next(ctx) {
			key := keys.Val()
			if seen[key] {
				continue
			}
			seen[key] = true
			res, err := lost.Run(ctx, node, []string{key}).Int64Slice()
			if err != nil {
				return err
			}
			if len(res) != 2 {
				continue
			}
			mu.Lock()
			full := len(all) >= n
			if !full {
				all = append(all, Lost{key[len(s.prefix):], time.UnixMilli(res[0]), time.UnixMilli(res[1])})
			}
			mu.Unlock()
			if full {
				return nil
			}
		}
		return keys.Err()
	}
	var err error
	switch client := s.client.(type) {
	case *redis.ClusterClient:
		err = client.ForEachMaster(ctx, scan)
	case *redis.Client:
		err = scan(ctx, client)
	default:
		err = fmt.Errorf("no way to look at all keys through a %T", client)
	}
	if err != nil {
		return nil, fmt.Errorf("redisstore: %w", err)
	}
	return all, nil
}

// glob makes a prefix a pattern that matches only itself.
var glob = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)

// isLost ends a script with nothing unless the key's owner is dead.
const isLost = now + `
		local r = redis.call('HMGET', KEYS[1], 'leased', 'answer')
		if not r[1] or r[2] or tonumber(r[1]) > now then return {} end`

var (
	lost   = redis.NewScript(isLost + ` return {tonumber(r[1]), now + redis.call('PTTL', KEYS[1])}`)
	forget = redis.NewScript(isLost + ` return {redis.call('DEL', KEYS[1])}`)
)

// Forget removes a key whose owner died, by the name that the store has for it, so that
// the next request with it runs. It reports whether there was one.
func (s *Store) Forget(ctx context.Context, key string) (bool, error) {
	res, err := forget.Run(ctx, s.client, []string{s.prefix + key}).Int64Slice()
	if err != nil {
		return false, fmt.Errorf("redisstore: %w", err)
	}
	return len(res) > 0, nil
}
