package sheaftest_test

import (
	"context"
	"testing"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/sheaftest"
)

// A program that keeps its state in Sheaf can be tested like this.
func ExampleStart() {
	test := func(t *testing.T) {
		server := sheaftest.Start(t)
		c := server.Client(t, client.Config{})
		if _, err := c.Put(context.Background(), client.Key{ID: 1}, []byte("state"), nil); err != nil {
			t.Fatal(err)
		}
	}
	_ = test
}

func TestTheStoreComesBackOnItsFolder(t *testing.T) {
	dir := t.TempDir()
	for round := range 3 {
		server, err := sheaftest.New(sheaftest.Config{Dir: dir, Shards: 2})
		if err != nil {
			t.Fatal(err)
		}
		c, err := client.New(client.Config{Addresses: []string{server.Addr()}})
		if err != nil {
			t.Fatal(err)
		}
		for id := range int64(20) {
			r, err := c.Get(context.Background(), client.Key{ID: id}, nil)
			if got, want := err == nil && string(r.Data) == "x", round > 0; got != want {
				t.Fatalf("round %d: record %d: %q, %v", round, id, r.Data, err)
			}
			if _, err := c.Put(context.Background(), client.Key{ID: id}, []byte("x"), nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if err := server.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnotherRoutingOnTheSameFolderIsRefused(t *testing.T) {
	dir := t.TempDir()
	server, err := sheaftest.New(sheaftest.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := sheaftest.New(sheaftest.Config{Dir: dir, Groups: 5}); err == nil {
		t.Fatal("5 groups were taken on a folder of 4")
	}
}
