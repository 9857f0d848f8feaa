package deliver

import (
	"context"
	"sync"
	"time"
)

// minute is what was counted of one destination in one minute.
type minute struct{ attempts, retries, failed, firstTry, recovered, dead int64 }

func (m *minute) plus(o minute) {
	m.attempts += o.attempts
	m.retries += o.retries
	m.failed += o.failed
	m.firstTry += o.firstTry
	m.recovered += o.recovered
	m.dead += o.dead
}

// A meter counts in memory and writes down now and then: what a process counted in its
// last second is lost if it is killed. The deliveries themselves never are.
type meter struct {
	c      *core
	mu     sync.Mutex
	counts map[meterKey]minute
}

type meterKey struct {
	destination string
	minute      int64
}

func newMeter(c *core) *meter { return &meter{c: c, counts: make(map[meterKey]minute)} }

func (m *meter) add(destination string, n minute) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := meterKey{destination, time.Now().Unix() / 60}
	sum := m.counts[key]
	sum.plus(n)
	m.counts[key] = sum
}

func (m *meter) flush(ctx context.Context) error {
	m.mu.Lock()
	counts := m.counts
	m.counts = make(map[meterKey]minute)
	m.mu.Unlock()
	if len(counts) == 0 {
		return nil
	}
	err := m.c.store.write(ctx, func(tx txn) error {
		for key, n := range counts {
			if _, err := tx.exec(ctx, `
				INSERT INTO retrip_minute AS m (destination, minute, attempts, failed, first_try, recovered, dead, retries)
				VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
				ON CONFLICT (destination, minute) DO UPDATE SET attempts = m.attempts + excluded.attempts, retries = m.retries + excluded.retries,
					failed = m.failed + excluded.failed, first_try = m.first_try + excluded.first_try,
					recovered = m.recovered + excluded.recovered, dead = m.dead + excluded.dead`,
				key.destination, key.minute, n.attempts, n.failed, n.firstTry, n.recovered, n.dead, n.retries); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil { // for the next time
		m.mu.Lock()
		defer m.mu.Unlock()
		for key, n := range counts {
			sum := m.counts[key]
			sum.plus(n)
			m.counts[key] = sum
		}
	}
	return err
}

// Stats are the counts of a destination over some time.
type Stats struct {
	Destination string
	Attempts    int64
	Retries     int64 // attempts that were not their delivery's first
	Failed      int64 // attempts
	FirstTry    int64 // deliveries made at the first attempt
	Recovered   int64 // and at a later one
	Dead        int64 // dead letters
}

// SuccessRate is the share of deliveries that ended well; 1 if none ended.
func (s Stats) SuccessRate() float64 {
	good := s.FirstTry + s.Recovered
	if good+s.Dead == 0 {
		return 1
	}
	return float64(good) / float64(good+s.Dead)
}

// RetryRate is the share of attempts that were not a delivery's first; 0 if there were
// none.
func (s Stats) RetryRate() float64 {
	if s.Attempts == 0 {
		return 0
	}
	return float64(s.Retries) / float64(s.Attempts)
}

// Stats returns the counts of all destinations since then, to the minute.
func (c *core) Stats(ctx context.Context, since time.Time) ([]Stats, error) {
	var all []Stats
	err := c.store.read().query(ctx, `
		SELECT destination, CAST(sum(attempts) AS bigint), CAST(sum(failed) AS bigint), CAST(sum(first_try) AS bigint),
			CAST(sum(recovered) AS bigint), CAST(sum(dead) AS bigint), CAST(sum(retries) AS bigint)
		FROM retrip_minute WHERE minute >= $1 GROUP BY destination ORDER BY destination`,
		[]any{since.Unix() / 60}, func(scan func(...any) error) error {
			var s Stats
			err := scan(&s.Destination, &s.Attempts, &s.Failed, &s.FirstTry, &s.Recovered, &s.Dead, &s.Retries)
			all = append(all, s)
			return err
		})
	return all, err
}
