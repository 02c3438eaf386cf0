// Package transfer handles the files of a group's log that are sent from one folder to another: which files there are,
// and their installation in the folder of a replica, beside a log that may be open.
package transfer
