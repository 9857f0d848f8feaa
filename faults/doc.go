// Package faults drives retrip through real network faults, on loopback only: a
// proxy that delays, throttles, cuts and resets connections, listeners that break
// the protocol on purpose, certificates and addresses that change, servers that are
// killed and started again under load.
//
// The claim is the same everywhere. The caller gets exactly one right answer or one
// honest error; the server does the work of a request as often as the rules allow;
// bytes arrive unchanged. A Ledger on the server's side counts, and Check compares it
// with what the caller saw.
package faults
