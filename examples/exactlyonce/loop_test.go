package main

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const payments, clients = 1000, 50

func loops(t *testing.T, on bool) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	r, err := loop(ctx, on, payments, clients)
	require.NoError(t, err)
	require.Empty(t, r.errs)
	require.Equal(t, payments, r.answered)
	require.Equal(t, payments, r.paid)
	require.Greater(t, r.attempts, int64(payments), "the network did nothing")
	return r
}

func TestEachPaymentIsMadeOnceAndItsClientGetsItsReceipt(t *testing.T) {
	t.Parallel()
	r := loops(t, true)
	require.Equal(t, payments, r.rows)
	require.Positive(t, r.replays)
	require.NoError(t, r.check(true, payments))
}

// The same with nothing to keep it from happening: or the test above would show nothing.
func TestWithoutTheMiddlewarePaymentsAreMadeTwice(t *testing.T) {
	t.Parallel()
	r := loops(t, false)
	require.Positive(t, r.doubles())
	require.Zero(t, r.replays)
	require.NoError(t, r.check(false, payments))
	require.ErrorContains(t, r.check(true, payments), "were made twice")
	require.ErrorContains(t, r.check(false, payments+1), "of 1001 payments 1000 were answered and 1000 made")
}

func TestTheTableHasBothRuns(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, 10, 5))
	require.Regexp(t, `(?m)^ +on +10 +10 +\d+ +\d+ +10 +0 `, out.String())
	require.Regexp(t, `(?m)^ +off +10 +10 +\d+ +0 +\d+ +\d+ `, out.String())
}
