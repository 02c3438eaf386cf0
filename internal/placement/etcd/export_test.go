package etcd

// MarkBehind stores a message in the member's folder, as a member does when etcd logs such a message and gives up.
func MarkBehind(c *MemberConfig, words string) error { return c.markBehind(words) }
