package format

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"
)

// Each attribute is encoded as key length (2 bytes), value length (4), key and value. The attributes are in ascending
// order of their keys.
const (
	attributeHeaderBytes  = 6
	attributeKeyBytesMax  = 255
	attributesPreallocate = 16 // enough for most records; the map grows if a record has more attributes
)

// EncodeAttributes encodes attributes in the order of their keys. It returns nil if there are no attributes. The error
// names the limit that is exceeded.
func EncodeAttributes(attributes map[string][]byte) ([]byte, error) {
	size := 0
	for key, value := range attributes {
		if why := keyRefusal(key); why != "" {
			return nil, fmt.Errorf("attribute %.40q: %s", key, why)
		}
		size += attributeHeaderBytes + len(key) + len(value)
		if size > AttributesBytesMax {
			return nil, fmt.Errorf("attributes are above the limit of %d bytes (keys, values and 6 bytes each)",
				AttributesBytesMax)
		}
	}
	if size == 0 {
		return nil, nil
	}
	b := make([]byte, 0, size)
	for _, key := range slices.Sorted(maps.Keys(attributes)) {
		value := attributes[key]
		b = binary.LittleEndian.AppendUint16(b, uint16(len(key)))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(value)))
		b = append(b, key...)
		b = append(b, value...)
	}
	return b, nil
}

// DecodeAttributes is the inverse of EncodeAttributes. It returns nil for an empty encoding, and an error for bytes
// that EncodeAttributes cannot have returned. It copies the values, and never panics.
func DecodeAttributes(encoded []byte) (map[string][]byte, error) {
	if len(encoded) == 0 {
		return nil, nil
	}
	if len(encoded) > AttributesBytesMax {
		return nil, fmt.Errorf("attributes: %w: %d bytes are above the limit of %d", ErrCorrupt, len(encoded),
			AttributesBytesMax)
	}
	attributes := make(map[string][]byte, min(attributesPreallocate, len(encoded)/attributeHeaderBytes))
	last := ""
	for b := encoded; len(b) > 0; {
		if len(b) < attributeHeaderBytes {
			return nil, fmt.Errorf("attributes: %w: cut off", ErrCorrupt)
		}
		keyBytes := int64(binary.LittleEndian.Uint16(b))
		valueBytes := int64(binary.LittleEndian.Uint32(b[2:]))
		b = b[attributeHeaderBytes:]
		if keyBytes+valueBytes > int64(len(b)) {
			return nil, fmt.Errorf("attributes: %w: cut off", ErrCorrupt)
		}
		key := string(b[:keyBytes])
		if why := keyRefusal(key); why != "" {
			return nil, fmt.Errorf("attributes: %w: key %.40q: %s", ErrCorrupt, key, why)
		}
		if key <= last {
			return nil, fmt.Errorf("attributes: %w: key %.40q is out of order", ErrCorrupt, key)
		}
		last = key
		attributes[key] = append([]byte{}, b[keyBytes:keyBytes+valueBytes]...)
		b = b[keyBytes+valueBytes:]
	}
	return attributes, nil
}

func keyRefusal(key string) string {
	switch {
	case key == "":
		return "key is empty"
	case len(key) > attributeKeyBytesMax:
		return "key is longer than 255 bytes"
	case !utf8.ValidString(key):
		return "key is not UTF-8"
	}
	return ""
}
