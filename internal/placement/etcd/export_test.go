package etcd

// MarkBehind records in a member's folder the message with which etcd gives up.
func MarkBehind(c *MemberConfig, words string) error { return c.markBehind(words) }
