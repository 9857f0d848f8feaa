//go:build !race

package deliver_test

var many = map[string]int{"sqlite": 10_000, "postgres": 10_000}
