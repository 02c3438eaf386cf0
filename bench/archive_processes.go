package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/internal/archive/archiver"
	"sheaf.dev/sheaf/internal/placement/listing"
	"sheaf.dev/sheaf/internal/status/archiving"
)

// archiveBucket is the bucket of the archives: a folder, or a folder that versitygw serves as S3.
type archiveBucket struct {
	dir     string // folder of the objects
	options string // S3: what follows the name of a folder in a URL
	s3      *drive.Process
}

// bucketSecret is the access key and the secret key of versitygw, which listens on loopback while it is measured.
const bucketSecret = "sheaf-bench"

// startBucket starts a bucket with its objects in the folder dir. If gateway is not empty, it is the path of versitygw.
func startBucket(ctx context.Context, dir, gateway string) (*archiveBucket, error) {
	b := &archiveBucket{dir: filepath.Join(dir, "archives")}
	if err := os.MkdirAll(b.dir, 0o755); err != nil || gateway == "" {
		return b, err
	}
	address, err := freeAddress(ctx)
	if err != nil {
		return b, err
	}
	//nolint:gosec,noctx // the user's own program; close ends it
	cmd := exec.Command(gateway, "--access", bucketSecret, "--secret", bucketSecret, "--port", address, "--quiet", "posix",
		dir)
	if b.s3, err = drive.Start(cmd, syscall.SIGKILL); err != nil {
		return b, err
	}
	b.options = "?region=us-east-1&use_path_style=true&endpoint=http://" + address
	return b, drive.Eventually(ctx, "versitygw listens", func() error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	}, b.s3)
}

// url returns the URL of a folder in the bucket.
func (b *archiveBucket) url(folder string) string {
	if b.s3 == nil {
		return "file://" + filepath.Join(b.dir, folder)
	}
	return "s3://" + filepath.Base(b.dir) + "/" + folder + b.options
}

// environment returns the environment of a program that uses the bucket.
func (b *archiveBucket) environment() []string {
	return append(os.Environ(), "AWS_ACCESS_KEY_ID="+bucketSecret, "AWS_SECRET_ACCESS_KEY="+bucketSecret,
		"AWS_CONFIG_FILE="+os.DevNull, "AWS_SHARED_CREDENTIALS_FILE="+os.DevNull, "AWS_EC2_METADATA_DISABLED=true")
}

func (b *archiveBucket) close() {
	if b.s3 != nil {
		b.s3.Kill()
	}
}

// command returns a command line of sheaf-archive.
func (b *archiveBench) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, b.opts.Archive, args...)
	cmd.Env = b.bucket.environment()
	return cmd
}

// archiverProcess is a process of `sheaf-archive run`.
type archiverProcess struct {
	*drive.Process
	http string // address of its status
}

// startArchiver starts to archive the store.
func (b *archiveBench) startArchiver(ctx context.Context, url string, interval time.Duration) (a archiverProcess,
	err error) {
	if a.http, err = freeAddress(ctx); err != nil {
		return a, err
	}
	a.Process, err = drive.Start(b.command(context.WithoutCancel(ctx), "run", url, "--server", b.store.gateway.Addr(),
		"--http", a.http, "--interval", interval.String(), "--name", "bench"), syscall.SIGKILL)
	return a, err
}

// stop ends the process as a user would.
func (a archiverProcess) stop() {
	_ = a.Cmd.Process.Signal(os.Interrupt) // an error means that the process has already exited
	<-a.Ended
}

// report returns what the archiver says of itself.
func (a archiverProcess) report(ctx context.Context) (r archiving.Report, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a.http+archiving.Path, nil)
	if err != nil {
		return r, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	return r, json.NewDecoder(response.Body).Decode(&r)
}

// reportPause is the pause between two looks at a process or a store that is being measured.
const reportPause = 5 * time.Millisecond

// await looks at a process again and again until the function says that something is so. It returns an error if the
// process ends first.
func await(ctx context.Context, p *drive.Process, is func() (bool, error)) error {
	for {
		switch ok, err := is(); {
		case p.Err() != nil:
			return p.Err()
		case err != nil:
			return err
		case ok:
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(reportPause):
		}
	}
}

// awaitReport waits until a report of the archiver is as wanted. Before the archiver serves its status, there is none.
func (a archiverProcess) awaitReport(ctx context.Context, is func(r *archiving.Report) bool) error {
	return await(ctx, a.Process, func() (bool, error) {
		r, err := a.report(ctx)
		if err != nil {
			return false, ctx.Err()
		}
		return is(&r), nil
	})
}

// bucketSpeed is how fast the bucket was, in bytes per second.
type bucketSpeed struct{ upload, download float64 }

// probe measures the bucket by the client that archives and restores, with objects of the size that an archive of the
// given size has.
func (b *archiveBench) probe(ctx context.Context, bytes int64) (s bucketSpeed, err error) {
	each := min(archiver.SegmentBytes, (bytes+int64(b.opts.Groups)-1)/int64(b.opts.Groups))
	cmd := b.command(ctx, "probe", b.bucket.url("probe"), "--bytes", strconv.FormatInt(bytes, 10), "--object-bytes",
		strconv.FormatInt(each, 10), "--timeout", "0", "-o", "json")
	out, err := cmd.Output()
	if err != nil {
		return s, fmt.Errorf("measuring the bucket: %w: %s", err, stderrOf(err))
	}
	var answer struct {
		Speed struct {
			Bytes           float64 `json:"bytes"`
			UploadSeconds   float64 `json:"uploadSeconds"`
			DownloadSeconds float64 `json:"downloadSeconds"`
		} `json:"speed"`
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return s, fmt.Errorf("measuring the bucket: %w", err)
	}
	return bucketSpeed{answer.Speed.Bytes / answer.Speed.UploadSeconds,
		answer.Speed.Bytes / answer.Speed.DownloadSeconds}, nil
}

func stderrOf(err error) []byte {
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exit.Stderr
	}
	return nil
}

// archiveSource is a process of `sheaf-archive source`.
type archiveSource struct {
	*drive.Process
	address string
	list    listing.List
}

// startSource starts a source for a new store, and waits until it has listed the groups.
func (b *archiveBench) startSource(ctx context.Context, url string) (s *archiveSource, err error) {
	s = &archiveSource{}
	if s.address, err = freeAddress(ctx); err != nil {
		return nil, err
	}
	s.Process, err = drive.Start(b.command(context.WithoutCancel(ctx), "source", url, "--into", uuid.NewString(),
		"--listen", s.address, "--no-use"), syscall.SIGKILL)
	if err != nil {
		return nil, err
	}
	err = drive.Eventually(ctx, "the source lists its groups", func() (err error) {
		s.list, err = listing.Ask(ctx, s.address, insecure.NewCredentials())
		return err
	}, s.Process)
	if err == nil {
		err = s.list.Whole()
	}
	if err != nil {
		s.Kill()
		return nil, err
	}
	return s, nil
}
