// Package transfer handles the files of a group's log that are sent from one folder to another: it knows which files
// there are, and installs them in the folder of a replica, where a log may be open meanwhile.
package transfer
