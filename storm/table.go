package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// A table is printed, and is a part of the HTML report.
type table struct {
	title string
	notes []string
	head  []string
	rows  [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) print(out io.Writer) error {
	fmt.Fprintf(out, "%s\n\n", t.title)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range append([][]string{t.head}, t.rows...) {
		for _, cell := range row {
			fmt.Fprintf(w, "%s\t", cell)
		}
		fmt.Fprintln(w)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, note := range t.notes {
		fmt.Fprintf(out, "  %s\n", note)
	}
	_, err := fmt.Fprintln(out)
	return err
}

// times writes a factor: ×1.062.
func times(f float64) string { return fmt.Sprintf("×%.3f", f) }

// percent writes a share.
func percent(f float64) string { return fmt.Sprintf("%.2f %%", 100*f) }

// seconds writes a time to the tenth of a second.
func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// number writes a number to one digit after the point, or none if it is whole.
func number(f float64) string {
	if f == float64(int64(f)) {
		return strconv.FormatInt(int64(f), 10)
	}
	return strconv.FormatFloat(f, 'f', 1, 64)
}

// indent sets a text two spaces in.
func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ")
}
