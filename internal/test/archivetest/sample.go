package archivetest

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
)

// SampleStore is the store of Sample.
var SampleStore = uuid.MustParse("11111111-2222-3333-4444-555555555555")

// SampleKey returns a key for encrypted archives.
func SampleKey(t testing.TB) object.Key {
	key, err := object.NewKey(bytes.Repeat([]byte{7}, object.KeyBytes))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Sample writes an archive of a few kilobytes with everything that an archive may have:
//
//	alpha   a first copy in two segments above a floor of 4, pieces, a roll, pieces after it, a large blob
//	beta    pieces alone, a blob, and a hole between indexes 5 and 7
//	gamma   deletes, then the group itself is deleted
//	delta   a first copy, and nothing since then except a read that found nothing new
//
// The argument blobBytes is each blob's size, at least 1.
func Sample(t testing.TB, b bucket.Bucket, key object.Key, blobBytes int) *Writer {
	t.Helper()
	return fill(New(t, b, SampleStore, key), blobBytes)
}

// Turns is like Sample, but the objects take turns with the given keys. The zero key leaves its objects unencrypted.
func Turns(t testing.TB, b bucket.Bucket, blobBytes int, keys ...object.Key) *Writer {
	t.Helper()
	w := New(t, b, SampleStore, object.Key{})
	w.Turns = keys
	return fill(w, blobBytes)
}

// fill writes the groups of Sample.
func fill(w *Writer, blobBytes int) *Writer {
	alpha, beta := w.NewGroup("alpha", 1), w.NewGroup("beta", 2)
	gamma, delta := w.NewGroup("gamma", 3), w.NewGroup("delta", 4)
	blob := func(seed byte) []byte {
		data := make([]byte, blobBytes)
		_, _ = rand.NewChaCha8([32]byte{seed}).Read(data)
		return data
	}

	alpha.Put(1, "one")
	alpha.Put(1, "one again")
	alpha.Put(-2, "minus two")
	alpha.Delete(1)
	alpha.Put(3, "three")
	alpha.Empty()
	alpha.Put(1, "one anew")
	alpha.Compact(1, 2)
	alpha.Floor = 4
	w.Copy(alpha, 3)
	delta.Put(1, "rests")
	delta.Empty()
	delta.Floor = 2
	w.Copy(delta, 10)

	beta.Empty()
	beta.Put(10, "ten")
	alpha.Put(3, "three, second")
	gamma.Put(5, "five")
	w.Log(alpha, beta, gamma, delta)
	beta.PutBlob(11, blob(1))
	beta.Delete(10)
	gamma.Delete(5)
	w.Log(beta, gamma)
	alpha.Delete(-2)
	w.Log(alpha, delta)
	w.Roll(alpha)

	// The next two puts are versions of one record, at indexes 5 and 6. Compaction drops them before they are archived.
	beta.Put(12, "lost")
	beta.Put(12, "lost, too")
	beta.Put(12, "twelve")
	beta.Compact(5, 6)
	beta.AddHole(5, 7)
	gamma.Gone = true
	w.Log(beta, gamma)
	alpha.PutBlob(4, blob(2))
	beta.Put(10, "ten anew")
	w.Log(alpha, beta, delta)
	w.Wait(10)
	w.Log(alpha, beta, delta)
	return w
}
