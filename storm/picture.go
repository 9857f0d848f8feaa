package main

// A picture is drawn to a file of the report.
type picture struct{}
