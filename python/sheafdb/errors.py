"""The errors of this package. All of them are Error, and survive pickling between processes."""


class Error(Exception):
    """An answer of the store that is no success, or a use of this package that cannot work.

    reason       the word that a store's message begins with, such as QUOTA_EXCEEDED, or "" if no store answered
    retry_after  the seconds that the store asks to wait before the next attempt, or None
    address      the server that the store names as the better one, or ""
    """

    def __init__(self, message, reason="", retry_after=None, address=""):
        super().__init__(message)
        self.reason, self.retry_after, self.address = reason, retry_after, address

    def __reduce__(self):
        return type(self), (str(self), self.reason, self.retry_after, self.address)


class NotFound(Error):
    """A record or group does not exist."""


class Denied(Error):
    """The store does not know the caller, or the caller has no grant for this call."""


class Invalid(Error):
    """The store refuses the call as it stands."""


class QuotaExceeded(Error):
    """A tenant has used up a quota."""


class Unavailable(Error):
    """The store could not answer in time. The call has had no effect, or is a read."""


class OutcomeUnknown(Error):
    """A write got no answer in time. It may have been applied, or may still be."""


class Expired(Error):
    """What a scan reads from has ended. Begin the scan again."""


class ViewExpired(Expired):
    """A view was closed, has expired, or kept too much on the disks of the store. Open another one."""


class Damaged(Error):
    """Stored bytes are bad."""


class Missing(Error):
    """Records of a data set cannot be read: they were deleted, are above 1 MiB, are damaged or not granted."""


class IdsError(Error):
    """A file of ids is missing, cut short, damaged, or of another data set."""


class StateError(Error):
    """A state of a loader that does not belong to this data set and order."""


class Forked(Error):
    """An object with connections was used before a fork, and again behind it."""


class WorkerDied(Error):
    """A worker of a loader ended by itself or was killed."""


BY_REASON = {
    "RECORD_NOT_FOUND": NotFound,
    "GROUP_NOT_FOUND": NotFound,
    "NOT_FOUND": NotFound,
    "PERMISSION_DENIED": Denied,
    "UNAUTHENTICATED": Denied,
    "INVALID_ARGUMENT": Invalid,
    "QUOTA_EXCEEDED": QuotaExceeded,
    "OUTCOME_UNKNOWN": OutcomeUnknown,
    "CURSOR_EXPIRED": Expired,
    "VIEW_EXPIRED": ViewExpired,
    "DAMAGED": Damaged,
    "UNAVAILABLE": Unavailable,
}
