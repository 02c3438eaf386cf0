package etcd

// MarkBehind notes in a member's folder what etcd says there before it gives up.
func MarkBehind(c *MemberConfig, words string) error { return c.markBehind(words) }
