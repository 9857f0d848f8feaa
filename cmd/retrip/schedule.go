package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/retrip-go/retrip/deliver"
	"github.com/spf13/cobra"
)

// schedules are those of --schedule. Whoever sends, serves or replays needs them: the
// first and the last settle how many attempts there are, the second how long it waits.
type schedules []string

func (s *schedules) flag(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar((*[]string)(s), "schedule", nil,
		"[name=]pause,pause,… or [name=]first..limit; *n at the end makes n attempts; without a name it is the default; may be repeated")
	_ = cmd.RegisterFlagCompletionFunc("schedule", cobra.NoFileCompletions)
}

func (s *schedules) options() ([]deliver.Option, error) {
	var opts []deliver.Option
	for _, text := range *s {
		name, schedule, err := parseSchedule(text)
		if err != nil {
			return nil, usageError{fmt.Errorf("--schedule %s: %w", text, err)}
		}
		opts = append(opts, deliver.WithSchedule(name, schedule))
	}
	return opts, nil
}

// parseSchedule reads
//
//	slow=5m,30m,3h         three pauses, four attempts
//	slow=5m,30m,3h*10      ten attempts: the last pause repeats
//	10s..30m*12            twelve attempts: pauses double, each more or less by a fifth
func parseSchedule(s string) (name string, schedule deliver.Schedule, err error) {
	name, list, named := strings.Cut(s, "=")
	if !named {
		name, list = "", s
	}
	list, times, repeated := strings.Cut(list, "*")
	attempts := 0
	if repeated {
		if attempts, err = strconv.Atoi(times); err != nil || attempts < 1 || attempts > 1000 {
			return "", schedule, fmt.Errorf("%q is not a number of attempts between 1 and 1000", times)
		}
	}
	first, limit, doubling := strings.Cut(list, "..")
	steps := strings.Split(list, ",")
	if doubling {
		steps = []string{first, limit}
	}
	var pauses []time.Duration
	for _, step := range steps {
		d, err := time.ParseDuration(strings.TrimSpace(step))
		if err != nil || d <= 0 {
			return "", schedule, fmt.Errorf("%q is not a pause such as 30s", step)
		}
		pauses = append(pauses, d)
	}
	switch {
	case doubling && !repeated:
		return "", schedule, fmt.Errorf("%s needs the number of attempts, such as %s*12", list, list)
	case doubling && pauses[1] < pauses[0]:
		return "", schedule, fmt.Errorf("%s is less than %s", limit, first)
	case doubling:
		return name, deliver.Doubling(pauses[0], pauses[1], 0.2, attempts), nil
	}
	schedule = deliver.Steps(pauses...)
	if repeated {
		schedule.Attempts = attempts
	}
	return name, schedule, nil
}
