// Package transfer is about the files of a group's log that go from one folder to another: which there are, and their
// installation in the folder of a replica, beside a log that may be open.
package transfer
