package deliver

// DeadIDs is the query by which dead letters are listed and counted.
func DeadIDs(dl *DeadLetters, f Filter) (query string, values []any) { return positional(dl.ids(f)) }

// NextIDs is the query by which pending deliveries are.
func NextIDs(dl *DeadLetters, n int) string { return dl.c.nextIDs(n) }
