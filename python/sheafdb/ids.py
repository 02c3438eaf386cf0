"""The ids of a data set, in a file that processes share by mapping it.

    offset  size  content
    0       8     "SHEAFIDS"
    8       4     format, 1, little-endian
    12      4     H, the size of the header, little-endian, a multiple of 8
    16      H     header: JSON in UTF-8, padded with spaces
    16+H    8*N   ids: int64, little-endian, by group and id

The header is {"digest": ..., "store": UUID, "routing": "hash" or "named", "view": ID, "groups": [[NAME, COUNT], ...]}.
Ids that are not of a view have no "view". Groups are
in the order of their names' bytes, and N is the sum of the counts. The digest is BLAKE2b with 16 bytes, in hexadecimal
digits, of the header with an empty digest, without spaces and with keys in this order, and of the ids behind it.
A file is valid if and only if it has exactly this size and this digest.
"""

import hashlib
import json
import os
import struct

import numpy as np

from .errors import IdsError

MAGIC = b"SHEAFIDS"
FORMAT = 1
HEADER_MAX = 64 << 20
CHUNK = 1 << 20


class Ids:
    """Ids by group, each once. Index i of a data set is the i-th id of all groups together."""

    def __init__(self, names, counts, values, store, routing, digest=None, path=None, view=""):
        self.groups, self.store, self.routing, self.path, self.view = names, store, routing, path, view
        self.counts = np.asarray(counts, np.int64)
        self.values = values
        self._ends = np.cumsum(self.counts)
        self.digest = digest or self._computed()

    @classmethod
    def of(cls, ids, store="", routing="named", view=""):
        """Ids in memory, from {group: array of ids}. Groups and ids are sorted, and an id that is given twice counts
        once."""
        parts = {name: np.unique(np.asarray(values, "<i8")) for name, values in ids.items()}
        names = sorted((name for name in parts if parts[name].size), key=str.encode)
        values = np.concatenate([parts[name] for name in names] or [np.empty(0, "<i8")])
        return cls(names, [parts[name].size for name in names], values, store, routing, view=view)

    @classmethod
    def open(cls, path, digest=None, store=None, verify=True, view=None):
        """Maps a file. With a digest, store or view, a file of another one is refused. Without verify, damage
        of the ids themselves is not noticed."""
        path = os.path.abspath(path)
        try:
            with open(path, "rb") as file:
                head = file.read(16)
                size = os.fstat(file.fileno()).st_size
                if head[:8] != MAGIC:
                    raise IdsError(f"{path}: this is not a file of ids")
                if len(head) < 16:
                    raise IdsError(f"{path}: cut short: it has {size} bytes; create it again")
                version, length = struct.unpack("<II", head[8:])
                if version != FORMAT:
                    raise IdsError(f"{path}: has format {version}, and this version reads {FORMAT}")
                if length > HEADER_MAX or length % 8:
                    raise IdsError(f"{path}: damaged: the header cannot have {length} bytes; create it again")
                header = file.read(length)
        except FileNotFoundError:
            raise IdsError(f"{path}: there is no such file of ids; create it with Store.ids") from None
        except OSError as err:
            raise IdsError(f"{path}: {err.strerror}") from err
        if len(header) < length:
            raise IdsError(f"{path}: cut short: it has {size} bytes; create it again")
        try:
            fields = json.loads(header)
            names, counts = [g[0] for g in fields["groups"]], [g[1] for g in fields["groups"]]
            store_found, routing, found = fields["store"], fields["routing"], fields["digest"]
            view_found = fields.get("view", "")
            if not all(type(c) is int and c > 0 for c in counts) or not all(type(n) is str for n in names):
                raise ValueError("a group has no name or count")
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as err:
            raise IdsError(f"{path}: damaged: its header cannot be read ({err}); create it again") from None
        expected = 16 + length + 8 * sum(counts)
        if size != expected:
            word = "cut short" if size < expected else "too long"
            raise IdsError(f"{path}: {word}: it has {size} bytes, and its header says {expected}; create it again")
        if store is not None and store_found != store:
            raise IdsError(f"{path}: has ids of store {store_found}, not of {store}")
        if view is not None and view_found != view:
            words = f"view {view_found}" if view_found else "no view"
            raise IdsError(f"{path}: has ids of {words}, not of view {view}: give another path, or that view")
        if digest is not None and found != digest:
            raise IdsError(f"{path}: is another data set: its digest is {found}, not {digest}")
        n = sum(counts)
        values = np.memmap(path, "<i8", "r", 16 + length, (n,)) if n else np.empty(0, "<i8")
        ids = cls(names, counts, values, store_found, routing, found, path, view_found)
        if verify and ids._computed() != found:
            raise IdsError(f"{path}: damaged: its content does not have its digest {found}; create it again")
        return ids

    def write(self, path):
        """Writes a file, and returns the ids mapped from it. The file gets its name when it is complete and synced."""
        path = os.path.abspath(path)
        header = self._header(self.digest)
        header += b" " * (-len(header) % 8)
        aside = f"{path}.{os.getpid()}.{os.urandom(4).hex()}.part"
        try:
            with open(aside, "xb") as file:
                file.write(MAGIC + struct.pack("<II", FORMAT, len(header)) + header)
                for start in range(0, len(self), CHUNK):
                    file.write(np.ascontiguousarray(self.values[start : start + CHUNK], "<i8"))
                file.flush()
                os.fsync(file.fileno())
            os.rename(aside, path)
            folder = os.open(os.path.dirname(path), os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as err:
            raise IdsError(f"{path}: cannot write the file of ids: {err.strerror}") from err
        finally:
            if os.path.exists(aside):
                os.unlink(aside)
        return Ids.open(path, digest=self.digest, verify=False)

    def select(self, which):
        """The ids at these indexes, or where a mask is true, as ids in memory with a digest of their own."""
        which = np.asarray(which)
        if which.dtype == bool:
            if which.shape != (len(self),):
                raise ValueError(f"the mask has shape {which.shape}, and there are {len(self)} ids")
            which = np.flatnonzero(which)
        which = np.unique(self._checked(which))
        numbers = np.searchsorted(self._ends, which, "right")
        counts = np.bincount(numbers, minlength=len(self.groups))
        names = [name for name, count in zip(self.groups, counts) if count]
        return Ids(names, counts[counts > 0], self.values[which], self.store, self.routing, view=self.view)

    def at(self, indexes):
        """The numbers of the groups, and the ids, at an array of indexes."""
        indexes = self._checked(indexes)
        return np.searchsorted(self._ends, indexes, "right"), self.values[indexes]

    def _checked(self, indexes):
        indexes = np.array(indexes, ndmin=1)
        if indexes.size == 0:
            return indexes.astype(np.int64)
        if indexes.dtype.kind not in "iu":
            raise TypeError(f"indexes are whole numbers, not {indexes.dtype}")
        if indexes.min() < 0 or indexes.max() >= len(self):
            raise IndexError(f"an index is not within 0 to {len(self) - 1}")
        return indexes.astype(np.int64)

    def _header(self, digest):
        groups = [[name, int(count)] for name, count in zip(self.groups, self.counts)]
        fields = {"digest": digest, "store": self.store, "routing": self.routing}
        if self.view:
            fields["view"] = self.view
        fields["groups"] = groups
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()

    def _computed(self):
        digest = hashlib.blake2b(self._header(""), digest_size=16)
        for start in range(0, self.values.size, CHUNK):
            digest.update(np.ascontiguousarray(self.values[start : start + CHUNK], "<i8"))
        return digest.hexdigest()

    def __len__(self):
        return int(self.values.size)

    def __repr__(self):
        return f"<{len(self)} ids in {len(self.groups)} groups, digest {self.digest}>"

    def __reduce__(self):
        if self.path:
            return _reopen, (self.path, self.digest)
        return Ids, (self.groups, self.counts, self.values, self.store, self.routing, self.digest, None, self.view)


def _reopen(path, digest):
    # The process that opened the file first has verified it.
    return Ids.open(path, digest=digest, verify=False)
