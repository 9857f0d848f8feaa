package main

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEveryEventArrivesOnceAfterTheReplay(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), filepath.Join(t.TempDir(), "webhooks.db"), 60, &out))
	said := out.String()
	require.Regexp(t, `(?m)^the panel: http://127\.0\.0\.1:\d+/$`, said)
	require.Contains(t, said, "60 events are written down\n")
	require.Contains(t, said, "    ALERT broken has ")
	require.Contains(t, said, "the certificate is mended; 20 dead letters are replayed\n")
	require.Contains(t, said, "\nsent 60 events, received 60, each once\n")
}
