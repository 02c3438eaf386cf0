package etcd

// MarkBehind stores, in a member's folder, the message that etcd logs before it gives up.
func MarkBehind(c *MemberConfig, words string) error { return c.markBehind(words) }
