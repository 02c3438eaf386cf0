package etcd

// MarkBehind stores the message that etcd logs before it gives up in the member's folder.
func MarkBehind(c *MemberConfig, words string) error { return c.markBehind(words) }
