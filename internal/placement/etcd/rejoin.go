package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"

	"sheaf.dev/sheaf/client/call/backoff"
)

// rejoinPause is the pause between two checks of the other members.
const rejoinPause = time.Second

// errWaits is the reason why a member cannot start now. A later start may succeed without a change of the
// configuration.
type errWaits struct {
	why   string
	empty bool
}

func (e *errWaits) Error() string {
	if e.empty {
		return fmt.Sprintf(
			"%v: %s. Bring the folder back from a copy or a snapshot. Where the whole of etcd is lost: start it once with the "+
				"initial cluster state new, and then run sheaf recover placement", ErrEmptyExisting, e.why)
	}
	return e.why
}

func (e *errWaits) Is(target error) bool { return e.empty && target == ErrEmptyExisting }

// emptyExisting returns the error for an empty folder when there is no other member that could be joined. The
// argument why gives the reason.
func (c *MemberConfig) emptyExisting(why string) error { return &errWaits{why: why, empty: true} }

// prepare gets the cluster and the folder ready before etcd starts. Usually there is nothing to do. If this member's
// disk was replaced, prepare has the cluster remove the former member and add this one as a new member. It gives up
// after JoinTimeout.
func (c *MemberConfig) prepare(ctx context.Context) (joins bool, err error) {
	if len(c.Cluster) == 1 {
		return false, nil
	}
	deadline := time.Now().Add(c.JoinTimeout)
	for said := ""; ; {
		step, err := c.prepareOnce(ctx)
		switch {
		case ctx.Err() != nil:
			return false, ctx.Err()
		case err == nil && step.Step == stepStart:
			return false, nil
		case err == nil && step.Step == stepJoin:
			return true, nil
		case err == nil && step.Step == stepRefuse:
			return false, fmt.Errorf("%w: %s", ErrNotTheMember, step.Why)
		}
		words := step.Why
		if err != nil {
			words = fmt.Sprintf("%s: %v", step.Why, err)
		}
		if words != said {
			said = words
			c.Logger.Warn("this member of etcd does not start as it is", "name", c.Name, "step", string(step.Step), "reason",
				words)
		}
		if err == nil && step.Step != stepWait {
			continue
		}
		if !time.Now().Before(deadline) {
			return false, &errWaits{why: words, empty: step.Step == stepWait && step.alone && c.readFolder().Empty}
		}
		if !backoff.Sleep(ctx, rejoinPause) {
			return false, ctx.Err()
		}
	}
}

// prepareOnce examines the folder and the cluster, decides on the next step, and performs that step.
func (c *MemberConfig) prepareOnce(ctx context.Context) (rejoin, error) {
	in := &rejoinInput{PeerURLs: c.ownURLs(), Members: len(c.Cluster), Existing: c.Existing, Folder: c.readFolder()}
	others := c.askOthers(ctx)
	var err error
	if in.View, err = c.viewOf(ctx, others, in); err != nil {
		in.NoView = err.Error()
	}
	step := decideRejoin(in)
	step.alone = in.View == nil
	if step.Step == stepJoin && c.Certs != nil {
		c.others = initialOf(in)
	}
	if in.Folder.Behind {
		step.Why += " (etcd has said: " + c.behindWords() + ")"
	}
	if slices.Contains([]rejoinStep{stepRemove, stepSetAside, stepAdd}, step.Step) && !c.Rejoin {
		return rejoin{Step: stepRefuse, Why: step.Why + ". Start it with --rejoin, and it joins the others as a new member"},
			nil
	}
	return step, c.take(ctx, step, in, others)
}

// take performs the step that decideRejoin has chosen.
func (c *MemberConfig) take(ctx context.Context, step rejoin, in *rejoinInput, others othersSaid) error {
	if step.Step == stepSetAside {
		return c.setAside(in.Folder)
	}
	if step.Step != stepRemove && step.Step != stepAdd {
		return nil
	}
	client, err := Dial(c.clientOf(others.endpoints))
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // an error from Close is harmless, because nothing is lost
	bounded, cancel := context.WithTimeout(ctx, 2*peerTimeout)
	defer cancel()
	if step.Step == stepRemove {
		_, err = client.MemberRemove(bounded, step.ID)
	} else {
		_, err = client.MemberAddAsLearner(bounded, []string{c.peerURL(c.AdvertisePeer)})
	}
	return err
}

// othersSaid holds the responses of the other members at their peer addresses. The responses may differ from each
// other.
type othersSaid struct {
	endpoints []string // client endpoints of the other members
	reported  [][]othersMember
	errs      []string
}

// othersMember is a member that is listed in another member's response.
type othersMember struct {
	ID         uint64   `json:"id"`
	PeerURLs   []string `json:"peerURLs"`
	ClientURLs []string `json:"clientURLs"`
}

// askOthers asks the other members of the initial cluster for the list of members and for the members' client URLs.
func (c *MemberConfig) askOthers(ctx context.Context) othersSaid {
	own := &rejoinInput{PeerURLs: c.ownURLs()}
	var said othersSaid
	var mu sync.Mutex
	var wait sync.WaitGroup
	round, err := transport.NewTransport(c.peerTLS(), peerTimeout)
	if err != nil {
		return othersSaid{errs: []string{err.Error()}}
	}
	defer round.CloseIdleConnections()
	for _, name := range c.members() {
		if name == c.Name {
			continue
		}
		wait.Go(func() {
			members, err := fetchMembers(ctx, round, c.peerURL(c.Cluster[name]))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				said.errs = append(said.errs, err.Error())
				return
			}
			said.reported = append(said.reported, members)
			for _, m := range members {
				if own.isMe(m.PeerURLs) {
					continue
				}
				for _, url := range m.ClientURLs {
					if !slices.Contains(said.endpoints, url) {
						said.endpoints = append(said.endpoints, url)
					}
				}
			}
		})
	}
	wait.Wait()
	slices.Sort(said.errs)
	return said
}

func fetchMembers(ctx context.Context, round http.RoundTripper, url string) (members []othersMember, err error) {
	bounded, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(bounded, http.MethodGet, url+"/members", nil)
	if err != nil {
		return nil, err
	}
	answer, err := (&http.Client{Transport: round}).Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, answer.Body.Close()) }()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", url, answer.Status)
	}
	return members, json.NewDecoder(http.MaxBytesReader(nil, answer.Body, 1<<20)).Decode(&members)
}

// viewOf asks a quorum of the others for the state of the cluster. It also records the id under which each of the
// others lists this member.
func (c *MemberConfig) viewOf(ctx context.Context, others othersSaid, in *rejoinInput) (*View, error) {
	if len(others.endpoints) == 0 {
		if len(others.errs) > 0 {
			return nil, errors.New(strings.Join(others.errs, "; "))
		}
		return nil, errors.New("the other members have not formed the cluster yet")
	}
	for _, members := range others.reported {
		told := uint64(0)
		for _, m := range members {
			if in.isMe(m.PeerURLs) {
				told = m.ID
			}
		}
		in.Reported = append(in.Reported, told)
	}
	client, err := Dial(c.clientOf(others.endpoints))
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Close() }() // an error from Close is harmless, because nothing is lost
	view, err := Look(ctx, client)
	if err != nil && len(others.errs) > 0 {
		err = fmt.Errorf("%w; %s", err, strings.Join(others.errs, "; "))
	}
	return view, err
}

// clientOf returns the configuration of a client that connects to the other members. The client uses the certificate
// that this member also presents to its own clients.
func (c *MemberConfig) clientOf(endpoints []string) ClientConfig {
	if c.Certs != nil {
		return ClientConfig{Endpoints: endpoints, Credentials: Credentials(c.Certs)}
	}
	return ClientConfig{Endpoints: endpoints, CAFile: c.ClientTLS.CA, CertFile: c.ClientTLS.Cert, KeyFile: c.ClientTLS.Key}
}

func (m *Member) learns() bool {
	self := m.etcd.Server.Cluster().Member(m.etcd.Server.MemberID())
	return self != nil && self.IsLearner
}

// becomeVoter repeatedly asks the cluster to make this member a voter, until the cluster has done so. The leader
// agrees once this member's log has nearly caught up with the leader's log.
func (m *Member) becomeVoter(ctx context.Context) {
	if !m.cfg.Rejoin || !m.joined(ctx) {
		return
	}
	said := ""
	for m.learns() {
		_, err := m.etcd.Server.PromoteMember(ctx, uint64(m.etcd.Server.MemberID()))
		if errors.Is(err, membership.ErrMemberNotLearner) {
			err = nil
		}
		if err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			m.logger.Info("this member of etcd catches up with the others", "name", m.cfg.Name, "answer", said)
		}
		if !backoff.Sleep(ctx, rejoinPause) {
			return
		}
	}
	if err := m.cfg.removeAside(); err != nil {
		m.logger.Warn("removing what was set aside of a former member of etcd", "error", err)
	}
}
