package fleet

import (
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
)

// These fields change frequently. A change of any other field is written immediately.
var (
	movingOfShard = map[string]bool{
		"Records": true, "StoredBytes": true, "LeadingGroups": true, "MemoryNeedBytes": true, "Load": true,
		"LoadPercent":        true,
		"LoadBytesPerSecond": true, "LoadDevicePercent": true,
	}
	movingOfPool = map[string]bool{"Records": true, "StoredBytes": true, "Load": true}
)

// filled sets each field of a struct to something other than its zero value.
func filled(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("words")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64:
		v.SetInt(3)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		filled(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		filled(v.Index(0))
	case reflect.Struct:
		for _, field := range v.Fields() {
			if field.CanSet() {
				filled(field)
			}
		}
	}
}

// checkFields sets each field of an empty status in turn, and checks when the change is written.
func checkFields[T any](t *testing.T, told func(T) T, moving map[string]bool) {
	t.Helper()
	var before T
	for i := range reflect.TypeFor[T]().NumField() {
		after := before
		filled(reflect.ValueOf(&after).Elem().Field(i))
		name := reflect.TypeFor[T]().Field(i).Name
		if step.WriteDue(before, after, told, step.PauseNumbers-1) == moving[name] {
			t.Errorf("%T.%s: moves by itself: %t, and is written at once: %t", before, name, moving[name], !moving[name])
		}
		if !step.WriteDue(before, after, told, step.PauseNumbers) {
			t.Errorf("%T.%s is not written after %s", before, name, step.PauseNumbers)
		}
		if step.WriteDue(after, after, told, time.Hour) {
			t.Errorf("%T.%s is written though nothing has changed", before, name)
		}
	}
}

func TestFrequentlyChangingFieldsAreWrittenLater(t *testing.T) {
	checkFields(t, UrgentOfShard, movingOfShard)
	checkFields(t, UrgentOfPool, movingOfPool)
}

func TestWhatAStatusReports(t *testing.T) {
	serves := v1alpha1.ShardStatus{
		Name: "ssd-1", Number: 1, State: v1alpha1.ShardServing, Message: "holds 5 groups, 62% at 1.9GiB/s on ssd-1",
		Groups: 4, ServingGroups: 4, Volume: &v1alpha1.VolumeStatus{UUID: "a", FreeBytes: 100},
	}
	loads := serves
	loads.State, loads.ServingGroups = v1alpha1.ShardLoading, 1
	type shard = v1alpha1.ShardStatus
	for name, c := range map[string]struct {
		before shard
		change func(*shard)
		now    bool
	}{
		"numbers of the message": {serves, func(s *shard) {
			s.Message = "holds 14 groups, 8% at 900MiB/s on ssd-1"
		}, false},
		"a name in the message": {serves, func(s *shard) {
			s.Message = "holds 5 groups, 62% at 1.9GiB/s on ssd-2"
		}, true},
		"the message":                {serves, func(s *shard) { s.Message = "" }, true},
		"free bytes":                 {serves, func(s *shard) { s.Volume.FreeBytes = 7 }, false},
		"another volume":             {serves, func(s *shard) { s.Volume.UUID = "b" }, true},
		"a group less is served":     {serves, func(s *shard) { s.ServingGroups-- }, true},
		"a group more is loaded":     {loads, func(s *shard) { s.ServingGroups++ }, false},
		"the first group is loaded":  {loads, func(s *shard) { s.ServingGroups = 0 }, true},
		"it leads another group":     {serves, func(s *shard) { s.LeadingGroups++ }, false},
		"it has loaded all":          {loads, func(s *shard) { s.State = v1alpha1.ShardServing }, true},
		"a group more is placed":     {serves, func(s *shard) { s.Groups++; s.ServingGroups++ }, true},
		"progress, in several words": {loads, func(s *shard) { s.LoadPercent, s.Load = 62, "62% 1.9GiB/s ETA 2m" }, false},
	} {
		after := *c.before.DeepCopy()
		c.change(&after)
		if got := step.WriteDue(c.before, after, UrgentOfShard, 0); got != c.now {
			t.Errorf("%s: written at once: %t", name, got)
		}
	}
	if serves.Volume.FreeBytes != 100 {
		t.Error("what is told of a status has changed the status")
	}
	pool := v1alpha1.ShardPoolStatus{
		ShardStatuses: []shard{serves}, Groups: v1alpha1.GroupCounts{Total: 9, Serving: 4, Loading: 5},
		Conditions: []metav1.Condition{
			{Type: "Loaded", Status: "False", Reason: "Loading", Message: "1 shard loads: 7% 1KiB/s"},
			{Type: "Ready", Message: "7 of 9"},
		},
	}
	type status = v1alpha1.ShardPoolStatus
	for name, c := range map[string]struct {
		change func(*status)
		now    bool
	}{
		"records of a shard":      {func(p *status) { p.ShardStatuses[0].Records = 7 }, false},
		"a shard's state":         {func(p *status) { p.ShardStatuses[0].State = v1alpha1.ShardNodeDown }, true},
		"another shard":           {func(p *status) { p.ShardStatuses[0].Number = 7 }, true},
		"groups, while they load": {func(p *status) { p.Groups.Serving, p.Groups.Loading = 5, 4 }, false},
		"groups that have loaded": {func(p *status) { p.Groups.Serving, p.Groups.Loading = 9, 0 }, true},
		"a damaged group":         {func(p *status) { p.Groups.Damaged = 1 }, true},
		"progress in a condition": {func(p *status) {
			p.Conditions[0].Message = "2 shards load: 9% 1MiB/s ETA 7m"
		}, false},
		"a number in a condition":    {func(p *status) { p.Conditions[1].Message = "8 of 9" }, false},
		"a large number in it":       {func(p *status) { p.Conditions[1].Message = "8 of 1,000,000" }, false},
		"a condition's generation":   {func(p *status) { p.Conditions[1].ObservedGeneration = 7 }, true},
		"a condition that is turned": {func(p *status) { p.Conditions[1].Status = "True" }, true},
	} {
		after := *pool.DeepCopy()
		c.change(&after)
		if got := step.WriteDue(pool, after, UrgentOfPool, 0); got != c.now {
			t.Errorf("pool: %s: written at once: %t", name, got)
		}
	}
}

// An important change of a status is written immediately. Changes of numbers alone are written at most every 30 s, and
// the written numbers are at most 30 s old. An unchanged status is not written.
func TestAStatusIsWrittenAtOnceOrAtMostEach30Seconds(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 7))
		var there, now v1alpha1.ShardStatus
		wroteAt, staleSince := -time.Hour, time.Duration(-1)
		for at := time.Duration(0); at < 10*time.Minute; at += time.Duration(random.IntN(4000)) * time.Millisecond {
			switch random.IntN(12) {
			case 0:
				now.State = []v1alpha1.ShardState{v1alpha1.ShardServing, v1alpha1.ShardDiskLost}[random.IntN(2)]
			case 1:
				now.Node = []string{"n1", "n2"}[random.IntN(2)]
			case 2, 3, 4, 5:
				now.Records, now.LoadPercent = random.Int64N(5), random.Int32N(3)
			}
			differs, tells := !reflect.DeepEqual(there, now), there.State != now.State || there.Node != now.Node
			due := step.WriteDue(there, now, UrgentOfShard, at-wroteAt)
			switch {
			case !differs && due:
				t.Fatalf("seed %d: at %s it is written, and nothing has changed", seed, at)
			case tells && !due:
				t.Fatalf("seed %d: at %s %+v is not written over %+v", seed, at, now, there)
			case due && !tells && at-wroteAt < 30*time.Second:
				t.Fatalf("seed %d: numbers are written at %s, and were at %s", seed, at, wroteAt)
			}
			switch {
			case due:
				there, wroteAt, staleSince = now, at, -1
			case differs && staleSince < 0:
				staleSince = at
			case !differs:
				staleSince = -1
			}
			if staleSince >= 0 && at-staleSince > 30*time.Second {
				t.Fatalf("seed %d: at %s numbers are not written since %s", seed, at, staleSince)
			}
		}
	}
}
