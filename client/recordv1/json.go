package recordv1

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strconv"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Messages about shards and groups have the same JSON format at /status, in the output of sheaf status -o json, and
// with json.Marshal. It is protojson with default values (EmitDefaultValues), so names are in lowerCamelCase, and only
// fields that can be absent are omitted. The format differs from protojson in three points:
//
//   - 64-bit integers are numbers, because scripts compare and add them. Record ids (sfixed64) are strings, as in
//     protojson, because a program that reads numbers as doubles would change them.
//   - Enums are written as words, such as Serving for GROUP_STATE_SERVING.
//   - Zeros are omitted from the row of a shard that does not respond, and of a replica that does not
//     serve, because they are not known.

// hasFigures reports whether the row's numbers are known. Unknown numbers are zero.
func (x *Shard) hasFigures() bool { return x.GetAlive() }

// hasFigures reports whether the row's numbers are known. Unknown numbers are zero.
func (x *Group) hasFigures() bool { return x.GetState().Serves() }

// MarshalJSON implements json.Marshaler.
func (x *ShardStatus) MarshalJSON() ([]byte, error) { return toJSON(x.ProtoReflect()) }

// UnmarshalJSON implements json.Unmarshaler. It ignores unknown names.
func (x *ShardStatus) UnmarshalJSON(text []byte) error { return fromJSON(text, x.ProtoReflect()) }

// MarshalJSON implements json.Marshaler.
func (x *StatusSummary) MarshalJSON() ([]byte, error) { return toJSON(x.ProtoReflect()) }

// UnmarshalJSON implements json.Unmarshaler. It ignores unknown names.
func (x *StatusSummary) UnmarshalJSON(text []byte) error { return fromJSON(text, x.ProtoReflect()) }

// MarshalJSON implements json.Marshaler.
func (x *Shard) MarshalJSON() ([]byte, error) { return toJSON(x.ProtoReflect()) }

// UnmarshalJSON implements json.Unmarshaler. It ignores unknown names.
func (x *Shard) UnmarshalJSON(text []byte) error { return fromJSON(text, x.ProtoReflect()) }

// MarshalJSON implements json.Marshaler.
func (x *Group) MarshalJSON() ([]byte, error) { return toJSON(x.ProtoReflect()) }

// UnmarshalJSON implements json.Unmarshaler. It ignores unknown names.
func (x *Group) UnmarshalJSON(text []byte) error { return fromJSON(text, x.ProtoReflect()) }

// MarshalJSON implements json.Marshaler.
func (x *Load) MarshalJSON() ([]byte, error) { return toJSON(x.ProtoReflect()) }

// UnmarshalJSON implements json.Unmarshaler. It ignores unknown names.
func (x *Load) UnmarshalJSON(text []byte) error { return fromJSON(text, x.ProtoReflect()) }

// jsonWriter writes a message as JSON. The encoder encodes the single values in it.
type jsonWriter struct {
	bytes.Buffer
	encoder *json.Encoder
}

func toJSON(m protoreflect.Message) ([]byte, error) {
	if !m.IsValid() { // m is a nil message
		return []byte("null"), nil
	}
	w := &jsonWriter{}
	w.encoder = json.NewEncoder(&w.Buffer)
	w.encoder.SetEscapeHTML(false)
	err := w.message(m)
	return w.Bytes(), err
}

func (w *jsonWriter) message(m protoreflect.Message) error {
	zeros := true
	if row, ok := m.Interface().(interface{ hasFigures() bool }); ok {
		zeros = row.hasFigures()
	}
	separator := "{"
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if !m.Has(f) && (f.HasPresence() || !zeros && isFigure(f)) {
			continue
		}
		fmt.Fprintf(w, "%s%q:", separator, f.JSONName())
		separator = ","
		if err := w.field(f, m.Get(f)); err != nil {
			return err
		}
	}
	if separator == "{" {
		w.WriteString(separator)
	}
	w.WriteString("}")
	return nil
}

func isFigure(f protoreflect.FieldDescriptor) bool {
	switch f.Kind() {
	case protoreflect.BoolKind, protoreflect.StringKind, protoreflect.EnumKind:
		return false
	default:
		return !f.IsList()
	}
}

func (w *jsonWriter) field(f protoreflect.FieldDescriptor, v protoreflect.Value) error {
	if !f.IsList() {
		return w.value(f, v)
	}
	w.WriteString("[")
	for i := range v.List().Len() {
		if i > 0 {
			w.WriteString(",")
		}
		if err := w.value(f, v.List().Get(i)); err != nil {
			return err
		}
	}
	w.WriteString("]")
	return nil
}

func (w *jsonWriter) value(f protoreflect.FieldDescriptor, v protoreflect.Value) error {
	switch f.Kind() {
	case protoreflect.MessageKind:
		return w.message(v.Message())
	case protoreflect.EnumKind:
		return w.encoder.Encode(wordOf(f.Enum(), v.Enum()))
	case protoreflect.Sfixed64Kind:
		return w.encoder.Encode(strconv.FormatInt(v.Int(), 10))
	case protoreflect.DoubleKind:
		if math.IsNaN(v.Float()) || math.IsInf(v.Float(), 0) { // JSON cannot express this number
			return w.encoder.Encode(nil)
		}
	default:
	}
	return w.encoder.Encode(v.Interface())
}

func fromJSON(text []byte, m protoreflect.Message) error {
	var in map[string]json.RawMessage
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		one := in[f.JSONName()]
		if len(one) == 0 || string(one) == "null" {
			continue
		}
		var err error
		if f.IsList() {
			err = listOf(one, f, m.Mutable(f).List())
		} else {
			var v protoreflect.Value
			if v, err = valueOf(one, f, func() protoreflect.Value { return m.NewField(f) }); err == nil {
				m.Set(f, v)
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", f.JSONName(), err)
		}
	}
	return nil
}

func listOf(text []byte, f protoreflect.FieldDescriptor, to protoreflect.List) error {
	var items []json.RawMessage
	if err := json.Unmarshal(text, &items); err != nil {
		return err
	}
	for _, one := range items {
		v, err := valueOf(one, f, to.NewElement)
		if err != nil {
			return err
		}
		to.Append(v)
	}
	return nil
}

// valueOf parses one field's JSON value. The function empty returns a new value of the field's type.
func valueOf(text []byte, f protoreflect.FieldDescriptor, empty func() protoreflect.Value) (protoreflect.Value, error) {
	v := empty()
	switch zero := v.Interface().(type) {
	case protoreflect.Message:
		return v, fromJSON(text, zero)
	case protoreflect.EnumNumber:
		var word string
		err := json.Unmarshal(text, &word)
		for values, i := f.Enum().Values(), 0; i < values.Len(); i++ {
			if n := values.Get(i).Number(); n != 0 && wordOf(f.Enum(), n) == word {
				v = protoreflect.ValueOfEnum(n)
			}
		}
		return v, err
	case int64:
		text = bytes.Trim(text, `"`) // record ids are written as strings
	}
	scalar := reflect.New(reflect.TypeOf(v.Interface()))
	err := json.Unmarshal(text, scalar.Interface())
	return protoreflect.ValueOf(scalar.Elem().Interface()), err
}
