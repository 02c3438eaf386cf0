package gateway_test

// recordPath is the path of the record with id 7.
const recordPath = "/v1/records/0/7"

// webRequest is a request and what must follow.
type webRequest struct {
	method, path, body string
	headers            []string
	status             int
	answer             string // the body, or a part of an error
	has                map[string]string
}

// webRequests are made of a store with one group, in which the record with id 7 has data "hello".
var webRequests = map[string]webRequest{
	"a record": {path: recordPath, status: 200, answer: "hello", has: map[string]string{"Etag": `"v1"`,
		"Content-Length": "5", "Content-Type": "application/octet-stream", "Sheaf-Group": "0", "Sheaf-Id": "7",
		"Sheaf-Crc32c": "9a71bb4c", "X-Content-Type-Options": "nosniff", "Accept-Ranges": "bytes"}},
	"the group of the id": {path: "/v1/records/-/7", status: 200, answer: "hello"},
	"the smallest id":     {path: "/v1/records/-/-9223372036854775808", status: 200, answer: "least"},
	"the largest id":      {path: "/v1/records/-/9223372036854775807", status: 200, answer: "most"},
	"an id above it":      {path: "/v1/records/-/9223372036854775808", status: 400, answer: "shortest form"},
	"no data": {path: "/v1/records/0/8", status: 200, answer: "",
		has: map[string]string{"Content-Length": "0"}},
	"HEAD": {method: "HEAD", path: recordPath, status: 200, has: map[string]string{"Etag": `"v1"`,
		"Content-Length": "5"}},
	"no record":       {path: "/v1/records/0/9", status: 404, answer: `"reason":"RECORD_NOT_FOUND"`},
	"HEAD, no record": {method: "HEAD", path: "/v1/records/0/9", status: 404},
	"a range": {path: recordPath, headers: []string{"Range", "bytes=1-3"}, status: 206, answer: "ell",
		has: map[string]string{"Content-Range": "bytes 1-3/5", "Content-Length": "3"}},
	"from a byte on": {path: recordPath, headers: []string{"Range", "bytes=3-"}, status: 206, answer: "lo"},
	"the last bytes": {path: recordPath, headers: []string{"Range", "bytes=-2"}, status: 206, answer: "lo"},
	"more than all": {path: recordPath, headers: []string{"Range", "bytes=-99999999999999999999"}, status: 206,
		answer: "hello"},
	"beyond the end": {path: recordPath, headers: []string{"Range", "bytes=2-99999999999999999999"}, status: 206,
		answer: "llo"},
	"behind the end": {path: recordPath, headers: []string{"Range", "bytes=5-"}, status: 416, answer: "BAD_RANGE",
		has: map[string]string{"Content-Range": "bytes */5"}},
	"far behind it": {path: recordPath, headers: []string{"Range", "bytes=99999999999999999999-"}, status: 416,
		answer: "BAD_RANGE"},
	"no bytes": {path: recordPath, headers: []string{"Range", "bytes=-0"}, status: 416, answer: "BAD_RANGE"},
	"of no data": {path: "/v1/records/0/8", headers: []string{"Range", "bytes=0-"}, status: 416,
		answer: "BAD_RANGE"},
	"backwards":    {path: recordPath, headers: []string{"Range", "bytes=3-1"}, status: 200, answer: "hello"},
	"two ranges":   {path: recordPath, headers: []string{"Range", "bytes=0-0,2-2"}, status: 200, answer: "hello"},
	"another unit": {path: recordPath, headers: []string{"Range", "records=0-0"}, status: 200, answer: "hello"},
	"of this version": {path: recordPath, headers: []string{"Range", "bytes=0-0", "If-Range", `"v1"`}, status: 206,
		answer: "h"},
	"of another one": {path: recordPath, headers: []string{"Range", "bytes=0-0", "If-Range", `"v0"`}, status: 200,
		answer: "hello"},
	"is still there": {path: recordPath, headers: []string{"If-None-Match", `"v0", W/"v1"`}, status: 304,
		has: map[string]string{"Etag": `"v1"`}},
	"is anything":     {path: recordPath, headers: []string{"If-None-Match", "*"}, status: 304},
	"was another one": {path: recordPath, headers: []string{"If-None-Match", `"v0"`}, status: 200, answer: "hello"},
	"a view":          {path: recordPath + "?view=x", status: 400, answer: "INVALID_ARGUMENT"},
	"a parameter":     {path: recordPath + "?viwe=x", status: 400, answer: "no parameter"},
	"given twice":     {path: recordPath + "?version=a&version=b", status: 400, answer: "given 2 times"},
	"a number twice":  {path: "/v1/records/0/07", status: 400, answer: "shortest form"},
	"a plus":          {path: "/v1/records/0/+7", status: 400, answer: "shortest form"},
	"no id":           {path: "/v1/records/0", status: 400, answer: "GROUP/ID"},
	"no number":       {path: "/v1/records/0/x", status: 400, answer: "shortest form"},
	"a slash more":    {path: "/v1/records/0/7/", status: 400, answer: "shortest form"},
	"two slashes":     {path: "/v1/records//7", status: 400, answer: "GROUP/ID"},
	"a spelling":      {path: "/v1/records/%30/7", status: 404, answer: "shortest form"},
	"upwards":         {path: "/v1/records/../7", status: 400, answer: "group"},
	"another path":    {path: "/", status: 404, answer: "/v1/records/GROUP/ID"},
	"another method": {method: "PUT", path: recordPath, status: 405, answer: "GET, HEAD",
		has: map[string]string{"Allow": "GET, HEAD"}},
	"a body":           {path: recordPath, body: "x", status: 400, answer: "body"},
	"a scan by POST":   {method: "POST", path: "/v1/scan.tar", status: 405, answer: "GET"},
	"a batch by GET":   {path: "/v1/batch.tar", status: 405, answer: "POST"},
	"a forged split":   {path: "/v1/scan.tar?split=4/4", status: 400, answer: "split"},
	"a negative split": {path: "/v1/scan.tar?split=-1/4", status: 400, answer: "split"},
	"no split":         {path: "/v1/scan.tar?split=0/0", status: 400, answer: "split"},
	"half a split":     {path: "/v1/scan.tar?split=1", status: 400, answer: "split"},
	"many splits":      {path: "/v1/scan.tar?split=0/65537", status: 400, answer: "split"},
	"a scan of a view": {path: "/v1/scan.tar?view=x", status: 400, answer: "INVALID_ARGUMENT"},
	"no group":         {path: "/v1/scan.tar?group=", status: 400, answer: "group"},
	"another group":    {path: "/v1/scan.tar?group=9", status: 404, answer: "GROUP_NOT_FOUND"},
}
