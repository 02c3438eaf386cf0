"""Batches of an order, read ahead by worker processes, with a state that says what was handed out."""

import multiprocessing
import os
import pickle
import signal
import traceback
from collections import deque

from .. import memory
from ..errors import Forked, StateError, WorkerDied

FORMAT = 1


def loader(ds, order, workers=0, prefetch=2):
    """An iterable of the batches of one rank.

    Each `for` runs to the end of an epoch: the first time of epoch 0, or of what load_state_dict said. A `for` that
    was left early is continued by the next one.

    workers   processes that read and decode; 0 reads in this process, when a batch is asked for
    prefetch  batches that each worker reads ahead
    """
    return Loader(ds, order, workers, prefetch)


class Loader:
    def __init__(self, ds, order, workers, prefetch):
        if len(ds) != order.n:
            raise ValueError(f"the data set has {len(ds)} samples, and the order is of {order.n}")
        if workers < 0 or prefetch < 1:
            raise ValueError(f"workers is {workers}, and prefetch is {prefetch}: give at least 0, and at least 1")
        if workers:
            try:
                pickle.dumps(ds)
            except Exception as err:
                raise TypeError(f"workers are processes of their own, and the data set cannot be sent to them: {err}."
                                " Is decode a function at the top of a module?") from err
        self.ds, self.order, self.workers, self.prefetch = ds, order, workers, prefetch
        self.epoch = self._delivered = 0
        self._pid, self._serial, self._pool = os.getpid(), 0, None

    def __len__(self):
        """The number of batches in a whole epoch."""
        return len(self.order)

    def __iter__(self):
        self._check_process()
        self._serial += 1
        return self._batches(self._serial)

    def state_dict(self):
        """What was handed out so far: with the batch that the loop is working at, without what was read ahead. The
        values are numbers and strings. The state is the same on all ranks, and fits any number of ranks and
        workers."""
        return {"format": FORMAT, "epoch": self.epoch, "delivered": self._delivered, **self._identity()}

    def load_state_dict(self, state):
        """Continues behind what was handed out when the state was taken."""
        try:
            if state["format"] != FORMAT:
                raise StateError(f"the state has format {state['format']}, and this version reads {FORMAT}")
            epoch, delivered = state["epoch"], state["delivered"]
            wrong = [f"{name} is {state[name]!r}, and here it is {value!r}"
                     for name, value in self._identity().items() if state[name] != value]
        except (KeyError, TypeError) as err:
            raise StateError(f"this is not a state of a loader: {err!r}") from None
        if wrong:
            raise StateError(f"the state is of another sequence: {'; '.join(wrong)}")
        if type(epoch) is not int or type(delivered) is not int or epoch < 0:
            raise StateError(f"the state has epoch {epoch!r} and {delivered!r} delivered")
        if not 0 <= delivered <= self.order.length or delivered % self.order.batch and delivered != self.order.length:
            raise StateError(f"{delivered} records were delivered: in an epoch of {self.order.length}, this is not the"
                             f" end of a batch of {self.order.batch}")
        self._serial += 1  # iterators of before end
        self.epoch, self._delivered = epoch, delivered

    def close(self):
        """Ends the workers. The next `for` starts new ones."""
        pool, self._pool = self._pool, None
        if pool and self._pid == os.getpid():
            pool.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, "_pool", None):
            self.close()

    def _identity(self):
        order = self.order
        shuffle = f"blocks of {order.block}, {order.window} together" if order.shuffle == "blocks" else order.shuffle
        return {"digest": self.ds.digest, "records": order.n, "seed": order.seed, "shuffle": shuffle}

    def _check_process(self):
        if os.getpid() != self._pid:
            raise Forked("this loader was made before a fork: make a loader in the new process")

    def _batches(self, serial):
        epoch, begin = self.epoch, -(-self._delivered // self.order.batch)
        source = self._prefetched(serial, epoch, begin) if self.workers else self._read_here(epoch, begin)
        for j in range(begin, len(self.order)):
            batch = next(source)
            if self._serial != serial:
                raise RuntimeError("this loader was begun again or moved to a state: this iterator is of before")
            self._delivered = min((j + 1) * self.order.batch, self.order.length)
            yield batch
            self._check_process()
            if self._serial != serial:
                raise RuntimeError("this loader was begun again or moved to a state: this iterator is of before")
        self.epoch, self._delivered = epoch + 1, 0

    def _read_here(self, epoch, begin):
        for indexes in self.order.epoch(epoch, begin):
            yield self.ds[indexes]

    def _prefetched(self, serial, epoch, begin):
        if self._pool is None:
            self._pool = Pool(self.ds, self.order, self.workers)
        pool, end = self._pool, len(self.order)
        asked = begin
        for j in range(begin, end):
            while asked < min(end, j + self.workers * self.prefetch):
                pool.ask(asked % self.workers, (serial, epoch, asked))
                asked += 1
            try:
                yield pool.answer(j % self.workers, (serial, epoch, j))
            except WorkerDied:
                self.close()
                raise


class Pool:
    """Worker processes. Each has its own pipe, and answers in the order in which it was asked."""

    def __init__(self, ds, order, count):
        context = multiprocessing.get_context("spawn")  # a fork would copy locks that threads hold
        self.workers = []
        try:
            for number in range(count):
                ours, theirs = context.Pipe()
                process = context.Process(target=work, args=(theirs, ds, order), daemon=True, name=f"sheafdb-{number}")
                process.start()
                theirs.close()  # so that the end of the worker is the end of the pipe
                self.workers.append((process, ours, deque()))
        except BaseException:
            self.close()
            raise

    def ask(self, number, task):
        _, pipe, asked = self.workers[number]
        try:
            pipe.send(task)
        except OSError:
            self._died(number, task)
        asked.append(task)

    def answer(self, number, task):
        """The batch of a task. Answers to tasks of iterators that were left are dropped."""
        _, pipe, asked = self.workers[number]
        while True:
            try:
                kind, value, text = pipe.recv()
            except (EOFError, OSError):
                self._died(number, task)
            if asked.popleft() != task:
                continue
            if kind == "error":
                raise value from Remote(text)
            return value

    def _died(self, number, task):
        process = self.workers[number][0]
        process.join(5)
        raise WorkerDied(f"worker {number} of {len(self.workers)} ended with code {process.exitcode} before it gave"
                         f" batch {task[2]} of epoch {task[1]}. Nothing is lost: the next loop continues with this"
                         " batch. A code of -9 often means that memory ran out") from None

    def close(self):
        for process, pipe, _ in self.workers:
            pipe.close()
            process.terminate()
        for process, _, _ in self.workers:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()


class Remote(Exception):
    """The traceback of a worker."""

    def __init__(self, text):
        super().__init__(f"\n{text}")


def work(pipe, ds, order):
    """A worker: reads tasks, and answers with batches, until the other end of the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that reads ends its workers
    memory.keep_freed()
    try:
        while True:
            _, epoch, j = pipe.recv()
            try:
                answer = "batch", ds[order.indexes(j, epoch)], ""
            except Exception as err:
                answer = "error", sendable(err), traceback.format_exc()
            try:
                pipe.send(answer)
            except (pickle.PicklingError, TypeError, AttributeError) as err:
                pipe.send(("error", TypeError(f"a batch cannot be sent to another process: {err}"), ""))
    except (EOFError, OSError):
        pass


def sendable(err):
    try:
        pickle.loads(pickle.dumps(err))
        return err
    except Exception:
        return RuntimeError(f"{type(err).__name__}: {err}")
