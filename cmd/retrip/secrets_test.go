package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What no command may print. The database is one that cannot be reached, by names right
// and wrong; the arguments are right, wrong and misplaced.
func TestSecretsPasswordsAndPathsAreNeverPrinted(t *testing.T) {
	// Not parallel: RETRIP_DB is the process's.
	const password, path = "pa55-w0rd", "hook-t0ken"
	secret, file := secretFile(t)
	url := "https://acme.example/" + path + "?key=" + path
	commands := [][]string{
		{}, {"--help"}, {"-h"}, {"--version"}, {"help"}, {"migrate"}, {"migrate", "--help"}, {"serve"}, {"serve", "--help"}, {"serve", "--listen", "127.0.0.1:99999"},
		{"send", "--to", "acme"}, {"send", "--help"}, {"send", "--to", "acme", "--file", secret}, {"status", "e1"}, {"status", "e1", "--json"}, {"dlq"}, {"dlq", "ls"}, {"dlq", "ls", "--help"},
		{"dlq", "show", "1"}, {"dlq", "replay", "1"}, {"dlq", "replay", "--all", "--dry-run"}, {"dlq", "purge", "--older-than", "1h"}, {"dlq", "export"}, {"dlq", "import"},
		{"dest", "ls"}, {"dest", "ls", "--json"}, {"dest", "put", "acme", url, "--secret-file", file}, {"dest", "put", "acme", url, "--secret-file", secret},
		{"dest", "put", "acme", url, secret}, {"dest", "put", "--help"}, {"dest", "put", "acme", "https://u:" + password + "@acme.example/" + path},
		{"dest", "put", "acme", "https://acme.example:x/" + path}, {"dest", "put", "acme", "https://acme.example/%zz" + path}, {"dest", "put", url, "acme"},
		{"dest", "pause", "acme", "--for", "1h"}, {"dest", "resume", "acme"}, {"dest", "disable", "acme"}, {"dest", "enable", "acme"},
		{"completion", "bash"}, {"__complete", "--db", ""}, {"__complete", "dlq", "ls", "--"},
		// Where they do not belong.
		{url}, {secret}, {"dlq", url}, {"dlq", "ls", url}, {"dlq", "show", url}, {"help", url}, {"--" + secret}, {"-" + url}, {"dlq", "ls", "--since", secret}, {"dlq", "ls", "--limit", url},
		{"dlq", "ls", "--reason", secret}, {"serve", "--allow-network", url}, {"serve", "--listen", url}, {"status", url}, {"send", "--to", url}, {"send", "--to", "acme", "--id", url},
	}
	existing := tool{t, filepath.Join(t.TempDir(), "test.db")}.migrated()
	existing.ok("dest", "put", "acme", url, "--secret-file", file)
	existing.run(letters(t, 1, func(_ int, l map[string]any) {
		l["parked"] = map[string]any{"method": "PUT", "url": url, "header": map[string]any{"Content-Type": []string{path}}}
	}), "dlq", "import")
	for _, db := range []string{existing.db,
		"postgres://u:" + password + "@127.0.0.1:1/x", "postgresql://u:" + password + "@127.0.0.1:1/x?sslmode=disable", "postgres://u:" + password + "@127.0.0.1:bad/x", "postgres://u:" + password + "/@127.0.0.1/x",
		"postgres:/u:" + password + "@h/x", "postgres//u:" + password + "@h/x", "mysql://u:" + password + "@h/x", "host=127.0.0.1 port=1 user=u password=" + password + " dbname=x", "password='" + password + " " + password + "' port=bad",
		"u:" + password + "@127.0.0.1/x",
	} {
		t.Setenv("RETRIP_DB", db)
		for _, args := range commands {
			if db == existing.db && (len(args) == 0 || args[0] == "serve" || args[0] == "dlq" && len(args) > 1 && args[1] == "export") {
				continue // serve would; export is for everything
			}
			var out, err bytes.Buffer
			run(t.Context(), args, strings.NewReader(""), &out, &err)
			for _, text := range []string{out.String(), err.String()} {
				require.NotContains(t, text, password, "%q %q", db, args)
				require.NotContains(t, text, path, "%q %q", db, args)
				require.NotContains(t, text, secret[6:], "%q %q", db, args)
			}
		}
	}
	var out bytes.Buffer
	require.Zero(t, run(t.Context(), []string{"--db", existing.db, "dest", "ls"}, nil, &out, &out))
	require.Contains(t, out.String(), "whsec_…", "secrets are shown as hints")
	out.Reset()
	require.Zero(t, run(t.Context(), []string{"--db", existing.db, "dlq", "show", existing.number("e1")}, nil, &out, &out))
	require.Contains(t, out.String(), "request      PUT https://acme.example\n")
	made, err := filepath.Glob("*" + password + "*")
	require.NoError(t, err)
	require.Empty(t, made, "a mistyped connection string is no file")
}

func TestErrorsAreRedacted(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"open https://u:p@h.example/path?q": "open https://…",
		"open https://h.example/path?q#f x": "open https://h.example x",
		"https://h.example?q":               "https://h.example",
		"postgres://u:a/b@h/x":              "postgres://…",
		"whsec_AbC+/=_-1 x":                 "… x",
		"host=h password = 'a b' x=1":       "host=h … x=1",
		"Password=abc":                      "…",
		"deliver: destination \"a\": no":    "deliver: destination \"a\": no",
	} {
		require.Equal(t, want, redact(in))
	}
}
