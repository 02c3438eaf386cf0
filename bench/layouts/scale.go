package layouts

// sizeCase is a number of records with one size.
type sizeCase struct{ size, records int }

// scale determines how much is measured.
type scale struct {
	rounds int

	sizes    []sizeCase // the numbers and sizes of records in table 1
	syncEach int        // number of records that are each synced before the next one is written
	// superseded lists the percentages of versions that are superseded. supersededTotal holds the total number of
	// versions, and the size of one version.
	superseded      []int
	supersededTotal sizeCase

	hashed []int // the numbers of records in table 2
	random int   // number of records that are opened, read and deleted at random in table 2

	lifeRecords, lifeFolders int // the numbers of records and of folders in table 3

	latency int // number of files in table 4

	deep      int  // number of records in table 5
	limitShow bool // measure what happens when a flat folder is full

	sample int64 // maximum number of bytes to read to measure a device's rate
}

// prewrittenMax is the maximum number of bytes that are written to an image in advance. The rest of the image is
// sparse.
const prewrittenMax = 16 << 30

var scales = map[string]*scale{
	"quick": {
		rounds: 2,
		sizes:  []sizeCase{{1 << 10, 8000}, {20 << 10, 3000}}, syncEach: 200,
		superseded: []int{50}, supersededTotal: sizeCase{10 << 10, 6000},
		hashed: []int{1 << 13}, random: 1 << 11,
		lifeRecords: 12000, lifeFolders: 12,
		latency: 20000,
		deep:    5000, limitShow: true,
		sample: 1 << 30,
	},
	"full": {
		rounds: 3,
		sizes:  []sizeCase{{1 << 10, 50000}, {10 << 10, 50000}, {20 << 10, 50000}, {100 << 10, 10000}}, syncEach: 2000,
		superseded: []int{10, 30, 50, 70, 90}, supersededTotal: sizeCase{10 << 10, 100000},
		hashed: []int{1 << 16, 1 << 18}, random: 1 << 14,
		lifeRecords: 200000, lifeFolders: 200,
		latency: 400000,
		deep:    200000, limitShow: true,
		sample: 1 << 30,
	},
	"paper": {
		rounds: 3,
		sizes:  []sizeCase{{1 << 10, 50000}, {10 << 10, 50000}, {20 << 10, 50000}, {100 << 10, 50000}}, syncEach: 5000,
		superseded: []int{10, 20, 30, 40, 50, 60, 70, 80, 90}, supersededTotal: sizeCase{10 << 10, 100000},
		hashed: []int{1 << 16, 1 << 18, 1 << 20}, random: 1 << 14,
		lifeRecords: 1000000, lifeFolders: 1000,
		latency: 400000,
		deep:    10000000, limitShow: true,
		sample: 1 << 30,
	},
	// The tiny scale exists only for tests. Its results mean nothing.
	"tiny": {
		rounds: 1,
		sizes:  []sizeCase{{1 << 10, 200}, {20 << 10, 100}}, syncEach: 10,
		superseded: []int{50}, supersededTotal: sizeCase{1 << 10, 200},
		hashed: []int{256}, random: 64,
		lifeRecords: 200, lifeFolders: 4,
		latency: 2000,
		deep:    200,
		sample:  16 << 20,
	},
}

// Scales returns the names that --scale accepts.
func Scales() []string { return []string{"quick", "full", "paper"} }

// need holds the resources that a measurement needs. They are checked before the first measurement.
type need struct {
	files   int   // number of files that the file system must be able to hold
	disk    int64 // in bytes
	memory  int64 // in bytes
	seconds float64
}

// These costs are assumptions. They are used only to estimate how much time, space and memory a run needs.
const (
	secondsPerMeasurement = 0.8
	secondsPerFile        = 120e-6 // time to create a file, read it with cold caches, check it and remove it
	secondsPerFileFUSE    = 400e-6
	secondsPerFileFusefat = 70e-3
	secondsPerFileScanned = 12e-9 // additional time for each file in the folder, if the folder has no index
	bytesPerSecond        = 300e6
	blockBytes            = 4 << 10
	inodeBytes            = 1 << 10
	memoryBase            = 256 << 20
)

// needOf returns the resources that a measurement with files of the given size needs. If hold is true, the
// measurement keeps the data of all files in memory.
func needOf(files, size int, hold bool) need {
	blocks := int64((size + blockBytes - 1) / blockBytes * blockBytes)
	n := need{files: files, disk: int64(files) * (blocks + inodeBytes)}
	n.seconds = secondsPerMeasurement + float64(files)*secondsPerFile + float64(n.disk)/bytesPerSecond
	n.memory = memoryBase
	if hold {
		n.memory += int64(files) * int64(size)
	}
	return n
}

// needOne returns the resources that records in a single file need.
func needOne(records, size int) need {
	const perRecord = 160 // bytes for the header, the padding, and the entries in hint and index
	n := need{files: 64, disk: int64(records)*int64(size+perRecord) + 64<<20}
	n.seconds = secondsPerMeasurement + 2*float64(n.disk)/bytesPerSecond
	n.memory = memoryBase + int64(records)*int64(size+perRecord)*5/4
	return n
}
