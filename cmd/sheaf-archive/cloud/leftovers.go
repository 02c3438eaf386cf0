package cloud

import (
	"context"
	"errors"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// pagesMax is the maximum number of pages in a list of unfinished uploads. A page lists up to 1,000 uploads.
const pagesMax = 1000

// RemoveLeftovers aborts the multipart uploads below the bucket's URL that began before the given time. Only S3 keeps
// such uploads: Google and Azure delete theirs after a week.
func (b *Bucket) RemoveLeftovers(ctx context.Context, before time.Time) (removed int, err error) {
	var client *s3.Client
	if !b.blobs.As(&client) {
		return 0, nil
	}
	ask := &s3.ListMultipartUploadsInput{Bucket: aws.String(b.container), Prefix: aws.String(b.prefix)}
	for range pagesMax {
		page, err := client.ListMultipartUploads(ctx, ask)
		if err != nil {
			return removed, b.fail(ctx, "list the unfinished uploads of", "", err)
		}
		for _, upload := range page.Uploads {
			if upload.Initiated == nil || !upload.Initiated.Before(before) {
				continue
			}
			_, err := client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{
				Bucket: aws.String(b.container), Key: upload.Key, UploadId: upload.UploadId,
			})
			if err != nil && statusOf(err).code != "NoSuchUpload" {
				return removed, b.fail(ctx, "abort an unfinished upload of", aws.ToString(upload.Key), err)
			}
			removed++
		}
		if !aws.ToBool(page.IsTruncated) {
			return removed, nil
		}
		ask.KeyMarker, ask.UploadIdMarker = page.NextKeyMarker, page.NextUploadIdMarker
	}
	return removed, b.fail(ctx, "list the unfinished uploads of", "", errors.New("there are more than a million"))
}
