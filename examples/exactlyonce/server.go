package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/retrip-go/retrip/idempotent"
	"github.com/retrip-go/retrip/idempotent/sqlstore"
	_ "modernc.org/sqlite"
)

// A server keeps its ledger and its idempotency keys in one SQLite database.
type server struct {
	db   *sql.DB
	http *http.Server
	addr string
}

func newServer(ctx context.Context, dir string, on bool) (*server, error) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "server.db")+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // writers queue here, in the order they come, and not in SQLite
	s := &server{db: db}
	if err := s.start(ctx, on); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

func (s *server) start(ctx context.Context, on bool) error {
	if _, err := s.db.ExecContext(ctx, `CREATE TABLE ledger (receipt integer PRIMARY KEY, payment text NOT NULL)`); err != nil {
		return err
	}
	var h http.Handler = http.HandlerFunc(s.pay)
	if on {
		store, err := sqlstore.New(ctx, s.db, sqlstore.SQLite)
		if err != nil {
			return err
		}
		h = idempotent.Handler(h, store, idempotent.Required())
	}
	mux := http.NewServeMux()
	mux.Handle("POST /payments", h)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.addr, s.http = l.Addr().String(), &http.Server{Handler: mux}
	go func() { _ = s.http.Serve(l) }()
	return nil
}

func (s *server) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return errors.Join(s.http.Shutdown(ctx), s.db.Close())
}

// A receipt is the answer to a payment.
type receipt struct {
	Payment string `json:"payment"`
	Receipt int64  `json:"receipt"`
}

// pay makes a payment. It goes on when the client goes: to give up in the middle would
// be to not know whether it was made.
func (s *server) pay(w http.ResponseWriter, r *http.Request) {
	payment, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	res, err := s.db.ExecContext(context.WithoutCancel(r.Context()), `INSERT INTO ledger (payment) VALUES ($1)`, string(payment))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	id, err := res.LastInsertId()
	if err != nil {
		panic(err) // it was made, and 500 would say that it was not
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(receipt{string(payment), id})
}

// verify looks whether a receipt is the payment's, here and in the ledger.
func (s *server) verify(ctx context.Context, payment string, r receipt) error {
	var booked string
	if err := s.db.QueryRowContext(ctx, `SELECT payment FROM ledger WHERE receipt = $1`, r.Receipt).Scan(&booked); err != nil {
		return err
	}
	if r.Payment != payment || booked != payment {
		return fmt.Errorf("the receipt %d is of %s, and in the ledger of %s", r.Receipt, r.Payment, booked)
	}
	return nil
}

// count returns how many rows are in the ledger, and of how many payments.
func (s *server) count(ctx context.Context) (rows, payments int, err error) {
	err = s.db.QueryRowContext(ctx, `SELECT count(*), count(DISTINCT payment) FROM ledger`).Scan(&rows, &payments)
	return rows, payments, err
}
