//go:build race

package deliver_test

// many is how many deliveries two workers share. They are fewer under the race detector:
// its pointer checks make SQLite, which is translated from C, about fifty times as slow.
var many = map[string]int{"sqlite": 200, "postgres": 2_000}
