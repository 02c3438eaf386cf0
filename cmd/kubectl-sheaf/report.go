package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/local/cli"
)

// reportFlags holds the flags of report.
type reportFlags struct {
	output   string
	since    time.Duration
	patience time.Duration
	source   time.Duration // time limit for reading one list, log or page; 0 means no limit
}

func (a *app) reportCommand() *cobra.Command {
	var f reportFlags
	cmd := &cobra.Command{
		Use:   "report [STORE]",
		Short: "Gather all that a maintainer needs into one archive",
		Long: `Writes a tar.gz with the status screen and its findings, the objects of the store and of the
operator, their events, the logs of their pods (also of containers that ended), and what shards,
gateways and etcd say of themselves at /status and /metrics, through the API server. Secrets are not
read. Values of environment variables, and what looks like a password, token or key in any text, are
left out; names, addresses and ids of damaged records are not: read it before you give it away. What
could not be had is in errors.txt: a list, log or page that takes longer than --source-timeout is left out.`,
		Example: `  kubectl sheaf report quotes -n prod
  kubectl sheaf report quotes -n prod --since 2h --output - | tar tz`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.patience < 0 || f.source < 0 {
				return fmt.Errorf("--live-timeout %v, --source-timeout %v: must not be negative", f.patience, f.source)
			}
			store, err := a.oneStore(cmd.Context(), args, f.source)
			if err != nil {
				return err
			}
			return a.report(cmd.Context(), store, f)
		},
	}
	cmd.Flags().StringVarP(&f.output, "output", "o", "",
		"file to write, - for standard output (default: sheaf-report-STORE-TIME.tar.gz)")
	cmd.Flags().DurationVar(&f.since, "since", 24*time.Hour, "take logs of so long")
	cmd.Flags().DurationVar(&f.patience, "live-timeout", livePatience,
		"how long a gateway may take to answer; 0: no limit")
	cmd.Flags().DurationVar(&f.source, "source-timeout", sourcePatience,
		"how long one list, log or page may take; 0: no limit")
	return cmd
}

// report writes the archive. If an error occurs, it deletes the incomplete file.
func (a *app) report(ctx context.Context, store *v1alpha1.RecordStore, f reportFlags) (err error) {
	a.progress("reads the objects of store %s", store.Name)
	s, err := a.gather(ctx, store, f.source)
	if err != nil {
		return err
	}
	a.progress("asks a gateway")
	s.Live = a.askGateway(ctx, store, f.patience)
	name := f.output
	if name == "" {
		name = fmt.Sprintf("sheaf-report-%s-%s.tar.gz", store.Name, s.Now.UTC().Format("20060102T150405Z"))
	}
	if name == "-" {
		return a.writeReport(ctx, s, f, a.out)
	}
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return failf("make the archive: %w", err)
	}
	if err = errors.Join(a.writeReport(ctx, s, f, file), file.Close()); err != nil {
		return errors.Join(failure{err}, os.Remove(name))
	}
	fmt.Fprintf(a.out, "wrote %s\n", name)
	return nil
}

// archive holds the state of a report that is being written. After a write error, it neither reads nor writes anything
// more.
type archive struct {
	tar    *tar.Writer
	folder string
	at     time.Time
	failed []string      // sources that could not be read, with the reasons
	limit  time.Duration // time limit for each source; 0 means no limit
	err    error         // error that ended the report
}

// sourcePatience is the default time limit for one source of a report.
const sourcePatience = 20 * time.Second

func (a *app) progress(format string, args ...any) { fmt.Fprintf(a.err, format+"\n", args...) }

// sourceError adds the name of the component that did not respond to a failed request, which the API server's own
// message leaves out. For example, if the node of a pod cannot be reached, the message is "the server rejected our
// request for an unknown reason".
func (r *archive) sourceError(err error) error {
	if r.limit > 0 && errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no answer within %v (--source-timeout)", r.limit)
	}
	status := apierrors.APIStatus(nil)
	if errors.As(err, &status) && status.Status().Code >= http.StatusInternalServerError {
		return fmt.Errorf("the API server got no answer from there, see whether the node and the container run (HTTP %d: %w)",
			status.Status().Code, err)
	}
	return err
}

// fail records an error that ends the report. If it is called more than once, the first error is kept.
func (r *archive) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

// add adds a file with the given text. It first removes secrets by redactText.
func (r *archive) add(name, text string) {
	if r.err != nil {
		return
	}
	text = redactText(text)
	err := r.tar.WriteHeader(&tar.Header{Name: r.folder + "/" + name, Mode: 0o600, Size: int64(len(text)), ModTime: r.at,
		Format: tar.FormatPAX})
	if err == nil {
		_, err = io.WriteString(r.tar, text)
	}
	if err != nil {
		r.fail("write %s into the archive: %w", name, err)
	}
}

// miss records that a source could not be read, and the error. It does nothing if err is nil.
func (r *archive) miss(what string, err error) {
	if err != nil {
		r.failed = append(r.failed, what+": "+r.sourceError(err).Error())
	}
}

// read calls the function source with the time limit. If source fails, read records the failure and returns false.
func (r *archive) read(ctx context.Context, what string, source func(context.Context) error) bool {
	if r.err != nil {
		return false
	}
	ctx, cancel := cli.Within(ctx, r.limit)
	defer cancel()
	err := source(ctx)
	r.miss(what, err)
	return err == nil
}

func (a *app) writeReport(ctx context.Context, s *snapshot, f reportFlags, to io.Writer) error {
	packed := gzip.NewWriter(to)
	r := &archive{tar: tar.NewWriter(packed), folder: "sheaf-report-" + s.Store.Name, at: s.Now, limit: f.source}
	r.failed = append(r.failed, s.Missing...)
	r.miss("ask a gateway", s.Live.Err)
	most := ""
	if r.limit > 0 {
		most = fmt.Sprintf(", each for at most %v", r.limit)
	}
	a.progress("lists the kinds of Kubernetes%s", most)
	reportSummary(s, r)
	a.reportObjects(ctx, s, r)
	a.addKind(ctx, r, schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "DeploymentList"}, operatorLabels)
	a.reportPods(ctx, s.Pods, f.since, r)
	var operators corev1.PodList
	r.read(ctx, "list the operator's pods", func(ctx context.Context) error {
		return a.objects.List(ctx, &operators, operatorLabels)
	})
	a.reportPods(ctx, operators.Items, f.since, r)
	if len(r.failed) > 0 {
		r.add("errors.txt", strings.Join(r.failed, "\n")+"\n")
	}
	if r.err != nil {
		return r.err
	}
	return errors.Join(r.tar.Close(), packed.Close())
}

// reportSummary adds the output of the command status, and what a gateway reported.
func reportSummary(s *snapshot, r *archive) {
	found := s.findings()
	r.add("status.txt", fmt.Sprintf("kubectl sheaf %s, %s\n\n%s", version, s.Now.UTC().Format(time.RFC3339),
		s.show(widthPlain, found)))
	files := map[string]any{"findings.json": found, "live/shards.json": s.Live.Shards, "live/groups.json": s.Live.Groups,
		"live/moves.json": s.Live.Moves}
	for _, name := range cli.SortedKeys(files) {
		text, err := json.MarshalIndent(files[name], "", "  ")
		if err != nil {
			r.fail("write %s: %w", name, err)
		}
		r.add(name, string(text)+"\n")
	}
}

// reportKinds are the kinds whose objects are read from the store's namespace by the store's label. Secrets and
// ConfigMaps are not among them.
var reportKinds = []schema.GroupVersionKind{
	{Version: "v1", Kind: "PodList"},
	{Version: "v1", Kind: "ServiceList"},
	{Version: "v1", Kind: "PersistentVolumeClaimList"},
	{Group: "apps", Version: "v1", Kind: "StatefulSetList"},
	{Group: "apps", Version: "v1", Kind: "DeploymentList"},
	{Group: "policy", Version: "v1", Kind: "PodDisruptionBudgetList"},
	{Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicyList"},
}

// reportObjects adds the objects of the store.
func (a *app) reportObjects(ctx context.Context, s *snapshot, r *archive) {
	volumes := make([]client.Object, 0, len(s.Volumes))
	for _, name := range cli.SortedKeys(s.Volumes) {
		volumes = append(volumes, new(s.Volumes[name]))
	}
	a.addObjects(r, slices.Concat([]client.Object{s.Store}, objectsOf(s.Pools), objectsOf(s.Shards),
		objectsOf(s.DiskSets), volumes, objectsOf(s.Nodes), objectsOf(s.Events)))
	namespace := client.InNamespace(s.Store.Namespace)
	for _, gvk := range reportKinds {
		a.addKind(ctx, r, gvk, namespace, client.MatchingLabels{v1alpha1.LabelStore: s.Store.Name})
	}
	for _, kind := range []string{"RecordTenantList", "RecordGrantList", "RecordArchiveList", "RecordBackupList"} {
		a.addKind(ctx, r, v1alpha1.GroupVersion.WithKind(kind), namespace)
	}
	a.addKind(ctx, r, schema.GroupVersionKind{Group: "storage.k8s.io", Version: "v1", Kind: "StorageClassList"})
}

// addKind adds all objects of one kind. If they cannot be read, the report lists the kind in errors.txt.
func (a *app) addKind(ctx context.Context, r *archive, gvk schema.GroupVersionKind, options ...client.ListOption) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(gvk)
	r.read(ctx, "list "+strings.TrimSuffix(gvk.Kind, "List"), func(ctx context.Context) error {
		return a.objects.List(ctx, list, options...)
	})
	for i := range list.Items {
		r.addObject(&list.Items[i])
	}
}

// addObjects adds typed objects. All events go to one file, in order.
func (a *app) addObjects(r *archive, objects []client.Object) {
	var events bytes.Buffer
	for _, o := range objects {
		if e, ok := o.(*corev1.Event); ok {
			fmt.Fprintf(&events, "%s %s %s/%s %s: %s\n", e.LastTimestamp.UTC().Format(time.RFC3339), e.Type,
				e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
			continue
		}
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		gvk, unknown := a.objects.GroupVersionKindFor(o)
		if err := errors.Join(err, unknown); err != nil {
			r.fail("write %s: %w", o.GetName(), err)
			return
		}
		u := &unstructured.Unstructured{Object: fields}
		u.SetGroupVersionKind(gvk)
		r.addObject(u)
	}
	r.add("events.txt", events.String())
}

// addObject adds one object, with possible secrets removed.
func (r *archive) addObject(u *unstructured.Unstructured) {
	redactObject(u)
	text, err := yaml.Marshal(u.Object)
	if err != nil {
		r.fail("write %s %s: %w", u.GetKind(), u.GetName(), err)
	}
	r.add(fmt.Sprintf("objects/%s/%s.yaml", strings.ToLower(u.GetKind()), u.GetName()), string(text))
}

// operatorLabels select the objects that the chart sheaf-operator creates, in any namespace.
var operatorLabels = client.MatchingLabels{v1alpha1.LabelComponent: workload.ComponentOperator,
	"app.kubernetes.io/part-of": v1alpha1.NameSheaf}

// logBytesMax is the maximum number of bytes that a report contains of one container's log. They are the newest ones.
const logBytesMax = 16 << 20

// reportPods adds the logs and the HTTP pages of pods.
func (a *app) reportPods(ctx context.Context, pods []corev1.Pod, since time.Duration, r *archive) {
	for i := range pods {
		pod := &pods[i]
		a.progress("reads logs and pages of pod %s (%d of %d)", pod.Name, i+1, len(pods))
		for _, c := range pod.Status.ContainerStatuses {
			a.addLog(ctx, r, pod, c.Name, false, since)
			if c.RestartCount > 0 {
				a.addLog(ctx, r, pod, c.Name, true, since)
			}
		}
		a.addPages(ctx, r, pod)
		if r.err != nil {
			return
		}
	}
}

// addLog adds the log of a container, or the log of its previous run.
func (a *app) addLog(ctx context.Context, r *archive, pod *corev1.Pod, container string, previous bool,
	since time.Duration) {
	seconds := int64(max(since.Seconds(), 1))
	// The option LimitBytes would keep the oldest lines, so the plugin reads all lines and keeps the newest ones.
	options := &corev1.PodLogOptions{Container: container, Previous: previous, SinceSeconds: &seconds, Timestamps: true}
	name := fmt.Sprintf("logs/%s/%s.log", pod.Name, container)
	if previous {
		options.SinceSeconds = nil // the container's previous run may have ended before the requested period
		name = fmt.Sprintf("logs/%s/%s.previous.log", pod.Name, container)
	}
	request, kept := a.core.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, options), &tail{limit: logBytesMax}
	if r.read(ctx, "read "+name, func(ctx context.Context) error {
		log, err := request.Stream(ctx)
		if err != nil {
			return err
		}
		_, err = io.Copy(kept, log)
		return errors.Join(err, log.Close())
	}) {
		r.add(name, kept.text())
	}
}

// addRead adds the body of the response to a request as a file.
func (r *archive) addRead(ctx context.Context, what, name string, request rest.ResponseWrapper) {
	var text []byte
	if r.read(ctx, what, func(ctx context.Context) (err error) {
		text, err = request.DoRaw(ctx)
		return err
	}) {
		r.add(name, string(text))
	}
}

// addPages requests pages from a pod's HTTP port through the API server.
func (a *app) addPages(ctx context.Context, r *archive, pod *corev1.Pod) {
	port := map[string]int{
		workload.ContainerShard: workload.PortShardHTTP, workload.ContainerGateway: workload.PortGatewayHTTP,
		workload.ContainerEtcd: workload.PortEtcdHTTP,
	}[pod.Labels[v1alpha1.LabelComponent]]
	if port == 0 || pod.Status.PodIP == "" {
		return
	}
	for _, file := range []string{"status.json", "metrics.txt"} {
		page, _, _ := strings.Cut(file, ".")
		r.addRead(ctx, fmt.Sprintf("read /%s of pod %s", page, pod.Name), fmt.Sprintf("pages/%s/%s", pod.Name, file),
			a.core.CoreV1().Pods(pod.Namespace).ProxyGet("http", pod.Name, strconv.Itoa(port), page, nil))
	}
}
