package fleettest

import (
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/internal/test/soaktest"
)

// absurdCases is the number of cases outside a soak.
const absurdCases = 150

// Absurdly calls check many times, each time with a different source of absurd values. These values may also contain
// the strings in the argument words. Pass such strings if the code under test compares a value with a certain string,
// such as the name of a state, because random strings would never be equal to it.
func Absurdly(t *testing.T, words []string, check func(a *Absurd)) {
	t.Helper()
	seed, cases := soaktest.Seed(t, 1), absurdCases
	if soaktest.Long() {
		cases *= 100
	}
	for n := range cases {
		check(&Absurd{rand: rand.New(rand.NewPCG(seed, uint64(n))), words: words}) //nolint:gosec // at least 0
	}
}

// Absurd creates values that their types allow although no sensible object has them, such as negative and huge
// numbers, NaN, nil pointers, and strings that are empty, very long or not valid as names.
type Absurd struct {
	rand  *rand.Rand
	words []string
}

// IntN returns a random number that is at least 0 and less than n.
func (a *Absurd) IntN(n int) int { return a.rand.IntN(n) }

const (
	absurdDepth = 8 // the maximum nesting of pointers, slices, maps and structs
	absurdItems = 3 // slices and maps have fewer elements than this
)

var (
	absurdTexts = []string{"", "a", "-", "0", "no uuid", "../..", "a/b/c", "%d %s %!", "9999999999999999999999",
		strings.Repeat("ä", 3000), "x" + strings.Repeat("ä", 3000), "\x00\n\t\x7f"}
	absurdNumbers = []int64{0, 1, -1, 2, 3, 7, 100, 101, 1 << 20, 1 << 40, math.MaxInt32, math.MinInt32, math.MaxInt64,
		math.MinInt64}
	absurdFloats     = []float64{0, 1, -1, 1e9, 1e300, -1e300, math.NaN(), math.Inf(1), math.Inf(-1)}
	absurdQuantities = []string{"0", "1", "-1Gi", "1m", "10Gi", "9E", "9999999999999999999999"}
	absurdTimes      = []time.Time{{}, time.Unix(0, 0), time.Unix(1<<40, 0), time.Unix(-1<<40, 0)}
)

// Fill sets all exported fields of the value to which the argument into points.
func (a *Absurd) Fill(into any) { a.fill(reflect.ValueOf(into).Elem(), absurdDepth) }

// Text returns an absurd string.
func (a *Absurd) Text() string {
	if len(a.words) > 0 && a.rand.IntN(2) == 0 {
		return oneOf(a, a.words)
	}
	return oneOf(a, absurdTexts)
}

func oneOf[T any](a *Absurd, list []T) T { return list[a.rand.IntN(len(list))] }

func (a *Absurd) fill(v reflect.Value, depth int) {
	switch at := v.Addr().Interface().(type) {
	case *resource.Quantity:
		*at = resource.MustParse(oneOf(a, absurdQuantities))
		return
	case *metav1.Time:
		at.Time = oneOf(a, absurdTimes)
		return
	case *time.Time:
		*at = oneOf(a, absurdTimes)
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(a.rand.IntN(2) == 0)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(oneOf(a, absurdNumbers))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(oneOf(a, absurdNumbers)))
	case reflect.Float32, reflect.Float64:
		v.SetFloat(oneOf(a, absurdFloats))
	case reflect.String:
		v.SetString(a.Text())
	case reflect.Struct:
		for i := range v.NumField() {
			if field := v.Field(i); field.CanSet() {
				a.fill(field, depth-1)
			}
		}
	case reflect.Pointer:
		v.SetZero()
		if depth > 0 && a.rand.IntN(3) > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			a.fill(v.Elem(), depth-1)
		}
	case reflect.Slice:
		v.SetZero()
		if depth > 0 {
			v.Set(reflect.MakeSlice(v.Type(), a.rand.IntN(absurdItems), absurdItems))
			for i := range v.Len() {
				a.fill(v.Index(i), depth-1)
			}
		}
	case reflect.Map:
		v.SetZero()
		if depth > 0 {
			v.Set(reflect.MakeMap(v.Type()))
			for range a.rand.IntN(absurdItems) {
				key, item := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
				a.fill(key, depth-1)
				a.fill(item, depth-1)
				v.SetMapIndex(key, item)
			}
		}
	}
}
