"""Views: a state of some groups that can be read for days (docs/flight.md)."""

import json
import os
import re
from datetime import timedelta

from pyarrow import flight

from . import errors, scan
from .ids import Ids

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
EXPIRES_MAX = 30 * 86400


class View:
    """Made by Store.view. It can be pickled, and behind `with` it is closed.

    id       names the view, for other processes and later runs
    groups   the names of its groups
    opened   when it was opened, in nanoseconds of Unix time
    expires  when it ends unless it is renewed, in nanoseconds of Unix time
    lost     why groups can no longer be read in the view, by their names; empty if all can be
    """

    def __init__(self, store, id, groups, opened, expires, lost=None):
        self.store, self.id, self.groups, self.opened, self.expires = store, id, groups, opened, expires
        self.lost = dict(lost or {})

    def renew(self, expires="24h"):
        """Lets the view last this long from now."""
        self.expires = act(self.store, "renew-view", view=self.id, expires_seconds=seconds(expires))["expires_unix_ns"]
        return self

    def close(self):
        """Ends the view for everybody. A view that has ended already is no error.

        The shards hear of it a moment later. Until then, reads still succeed, with the data of the view.
        """
        act(self.store, "close-view", view=self.id)

    def get_many(self, ids, group=None, columns=None):
        """As Store.get_many, of this view."""
        return self.store.get_many(ids, group, columns, view=self)

    def scan(self, groups=None, columns=None, parallel=2, split_bytes=None):
        """As Store.scan, of this view."""
        return self.store.scan(groups, columns, parallel, split_bytes, view=self)

    def splits(self, groups=None, columns=None, split_bytes=None, shared=False):
        """As Store.splits, of this view. The parts last as long as the view."""
        return self.store.splits(groups, columns, split_bytes, view=self, shared=shared)

    def ids(self, path=None):
        """The ids of the view, as a sheafdb.Ids whose `values` are sorted by group and id. With a path they are in a
        file, which `values` maps. A file that is there already is opened instead of a scan, and is an error if it is
        damaged or has not the ids of this view."""
        if path and os.path.exists(path):
            return Ids.open(path, view=self.id)
        table = self.store.routes(fresh=True)
        found = scan.ids(self.scan(columns=[], parallel=4))
        ids = Ids.of(found, store=table["store"], routing=table["mode"], view=self.id)
        return ids.write(path) if path else ids

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        return f"<view {self.id} of {len(self.groups)} groups at {self.store.address}>"


def view_of(store, groups, expires, id):
    """A new view of groups or, with an id, the view that was opened before."""
    lasts = seconds(expires)
    if id is not None:
        if groups is not None:
            raise ValueError("a view that was opened before has its groups: give id or groups")
        found = act(store, "renew-view", view=id_of(id), expires_seconds=lasts)
    else:
        fields = {}
        if groups is not None:
            fields["groups"] = [groups] if isinstance(groups, str) else list(groups)
            if not fields["groups"]:
                raise ValueError("groups is empty: give names, or leave it out for all groups")
        found = act(store, "open-view", expires_seconds=lasts, **fields)
    return shown(store, found)


def views_of(store):
    """The views of which the caller may scan all groups, the oldest first."""
    return [shown(store, found) for found in results(store, "list-views", b"")]


def shown(store, found):
    """A view as an action has answered it."""
    return View(store, found["view"], found["groups"], found["opened_unix_ns"], found["expires_unix_ns"],
                found.get("lost"))


def act(store, name, **fields):
    """The answer of an action. An attempt to open a view whose answer was lost leaves a view until it expires."""
    answers = results(store, name, json.dumps(fields).encode())
    if not answers:
        raise errors.Unavailable(f"{name}: the answer is empty")
    return answers[0]


def results(store, name, body):
    """All results of an action."""
    action = flight.Action(name, body)

    def attempt(client, options):
        return [json.loads(result.body.to_pybytes()) for result in client.do_action(action, options)]
    return store._retried(name, attempt)


def id_of(view):
    """The id of a view, of which the view itself or its id is given."""
    if isinstance(view, View):
        return view.id
    if not isinstance(view, str) or not view:
        # A view that was lost must never mean the newest records.
        raise TypeError(f"view is {view!r}: give a view or its id")
    return view


def seconds(expires):
    """Seconds, from a number, a timedelta or words such as "90s", "45m", "24h" or "7d"."""
    if isinstance(expires, timedelta):
        found = expires.total_seconds()
    elif isinstance(expires, str):
        words = re.fullmatch(r"([0-9]{1,9})([smhd])", expires)
        if not words:
            raise ValueError(f'expires is {expires!r}: give seconds, or words such as "45m", "24h" or "7d"')
        found = int(words[1]) * SECONDS[words[2]]
    else:
        found = expires
    if not 1 <= found <= EXPIRES_MAX:
        raise ValueError(f"expires is {expires!r}: give 1 second to 30 days")
    return int(found)
