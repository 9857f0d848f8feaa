package sqlstore

import "strings"

// Statements returns those that look for rows by something else than a key, for EXPLAIN.
func (s *Store) Statements() map[string]string {
	return map[string]string{
		"Purge": strings.ReplaceAll(s.purge(), "$1", "10"),
		"Lost":  strings.ReplaceAll(s.lost(), "$1", "10"),
	}
}
