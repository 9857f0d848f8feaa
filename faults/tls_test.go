package faults_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/retrip-go/retrip/faults"
	"github.com/stretchr/testify/require"
)

// An authority signs certificates for 127.0.0.1.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{key: newKey(t)}
	a.cert = a.sign(t, a.key, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}).Leaf
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return key
}

func (a *authority) sign(t *testing.T, key *ecdsa.PrivateKey, c *x509.Certificate) *tls.Certificate {
	c.SerialNumber = big.NewInt(time.Now().UnixNano())
	c.Subject = pkix.Name{CommonName: "faults"}
	if c.NotAfter.IsZero() {
		c.NotAfter = time.Now().Add(time.Hour)
	}
	parent := a.cert
	if parent == nil {
		parent = c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), a.key)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// leaf is a certificate that is good unless change makes it bad.
func (a *authority) leaf(t *testing.T, change func(*x509.Certificate)) *tls.Certificate {
	c := &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	change(c)
	return a.sign(t, newKey(t), c)
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// serveTLS starts a server that shows the certificate of the moment.
func serveTLS(t *testing.T, w wire, cert *atomic.Pointer[tls.Certificate], h http.Handler) string {
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.EnableHTTP2 = w == http2
	s.TLS = &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert.Load(), nil }}
	s.StartTLS()
	s.TLS.Certificates = nil // those of httptest come first
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func TestABadCertificateIsFinalUntilItIsRotated(t *testing.T) {
	t.Parallel()
	ours, others := newAuthority(t), newAuthority(t)
	good := func(*x509.Certificate) {}
	for name, bad := range map[string]*tls.Certificate{
		"OfAnAuthorityThatNobodyTrusts": others.leaf(t, good),
		"ThatHasExpired":                ours.leaf(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) }),
		"ForAnotherHost":                ours.leaf(t, func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 9)} }),
	} {
		for _, w := range []wire{http1, http2} {
			for _, k := range kinds(4<<10, 32<<10) {
				t.Run(name+"/"+string(w)+"/"+k.name, func(t *testing.T) {
					t.Parallel()
					var (
						cert   atomic.Pointer[tls.Certificate]
						ledger faults.Ledger
					)
					cert.Store(bad)
					addr := "https://" + serveTLS(t, w, &cert, &ledger)
					base := newBase(w, ours.pool())
					t.Cleanup(base.CloseIdleConnections)
					rotate := func() { cert.Store(ours.leaf(t, good)) }
					trust := func(a retrip.Attempt) bool { return a.Err != nil }

					out, err := k.do(t, newClient(base), &ledger, addr, "bad")
					require.NoError(t, err)
					require.Zero(t, out.Attempts, "it was tried again")
					require.ErrorAs(t, out.Err, new(*tls.CertificateVerificationError))
					require.Zero(t, ledger.Of("bad").Arrivals)

					// Nothing was sent, so a policy may have even a bare POST repeated.
					hopeful := newClient(base, retrip.WithPolicy(trust), retrip.WithTrace(onFirstPause(rotate)))
					out, err = k.do(t, hopeful, &ledger, addr, "rotated")
					require.NoError(t, err)
					require.True(t, succeeded(out) && out.Attempts == 2, "%+v", out)
					require.Equal(t, 1, ledger.Of("rotated").Work)

					out, err = k.do(t, newClient(base), &ledger, addr, "good")
					require.NoError(t, err)
					require.True(t, succeeded(out) && out.Attempts == 1, "%+v", out)
					require.Equal(t, 1, ledger.Of("good").Work)
				})
			}
		}
	}
}
