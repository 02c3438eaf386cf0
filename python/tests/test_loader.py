"""Loaders: exact order for any number of ranks and workers, and exact continuation behind kills."""

import json
import os
import pickle
import platform
import random
import signal
import subprocess
import sys

import numpy as np
import pytest

import model
from model import Model, decode_ids, ids_of
from sheafdb.errors import Forked, StateError, WorkerDied
from sheafdb.ids import Ids
from sheafdb.ml import Dataset, Order, loader

SOAK = bool(os.environ.get("SHEAF_SOAK"))
KILLS = int(os.environ.get("SHEAF_KILLS", "1000" if SOAK else "4"))
SEED = int(os.environ.get("SHEAF_SEED", "36"))


def dataset(n, **fields):
    return Dataset(Model(), ids_of(n), decode=fields.pop("decode", decode_ids), **fields)


def epochs_of(n, batch, count, seed=5, **fields):
    """The global batches of whole epochs, as lists of ids."""
    ids, order = ids_of(n).values, Order(n, seed, batch, **fields)
    return [[ids[order.indexes(j, epoch)].tolist() for j in range(len(order))] for epoch in range(count)]


@pytest.mark.parametrize("workers, prefetch", [(0, 1), (1, 1), (3, 2)])
def test_batches_come_in_order(workers, prefetch):
    with loader(dataset(50), Order(50, 5, 4), workers=workers, prefetch=prefetch) as batches:
        assert len(batches) == 13
        for expected in epochs_of(50, 4, 3):
            assert [batch.tolist() for batch in batches] == expected
        assert batches.epoch == 3


def test_kills_between_steps_change_nothing():
    draw = random.Random(SEED)
    n, batch, kills = 120, 7, 1000 if SOAK else 100
    expected = [b for epoch in epochs_of(n, batch, kills) for b in epoch]
    seen, state = [], None
    ds = dataset(n)
    for _ in range(kills):
        world = draw.randint(1, 7)
        ranks = [loader(ds, Order(n, 5, batch, rank, world)) for rank in range(world)]
        for rank in ranks:
            if state:
                rank.load_state_dict(json.loads(state))
        steps = draw.randint(0, 8)
        while steps >= 0:
            for parts in zip(*ranks, strict=True):
                seen.append(np.concatenate(parts).tolist())
                states = {json.dumps(rank.state_dict()) for rank in ranks}
                assert len(states) == 1
                state, steps = states.pop(), steps - 1
                if steps < 0:
                    break
    assert seen == expected[: len(seen)]
    assert len(seen) > 3 * kills


def killed(folder, draw, kills, n=60, batch=9, epochs=4):
    """Runs train.py with kills at random steps and moments, and then to its end."""
    done = 0
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    while True:
        world, workers = draw.randint(1, 7), 0 if draw.random() < 0.4 else draw.randint(1, 4)
        if world * workers > 4:
            world = 1  # processes need memory
        program = model.__file__.replace("model.py", "train.py")
        command = [sys.executable, program, *map(str, (folder, n, batch, world, workers, epochs))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as process:
            steps = draw.randint(0, 3)
            for line in process.stdout:
                if line == b"end\n":
                    break
                steps -= 1
                if steps < 0 and done < kills:
                    process.send_signal(signal.SIGKILL)
                    done += 1
                    break
            process.stdout.read()  # also ends when the workers have ended, because they hold the pipe
        if process.returncode == 0:
            return done
        assert process.returncode == -signal.SIGKILL


def test_killed_processes_change_nothing(tmp_path):
    draw, kills, done, run = random.Random(SEED), KILLS, 0, 0
    expected = b"".join(np.array(b, "<i8").tobytes() for epoch in epochs_of(60, 9, 4) for b in epoch)
    while done < kills:
        run += 1
        folder = tmp_path / str(run)
        folder.mkdir()
        done += killed(folder, draw, kills - done)
        assert (folder / "log").read_bytes() == expected


def test_a_state_says_what_was_handed_out():
    with loader(dataset(50), Order(50, 5, 4), workers=2, prefetch=3) as batches:
        assert batches.state_dict()["delivered"] == 0
        for number, _ in enumerate(batches, 1):
            assert batches.state_dict()["epoch"] == 0
            assert batches.state_dict()["delivered"] == min(4 * number, 50)
        assert (batches.state_dict()["epoch"], batches.state_dict()["delivered"]) == (1, 0)


def test_the_end_of_an_epoch_is_continued_behind_it():
    batches = loader(dataset(8), Order(8, 5, 4))
    for _ in batches:
        state = batches.state_dict()
    other = loader(dataset(8), Order(8, 5, 4))
    other.load_state_dict(state)
    assert [batch.tolist() for batch in other] == []
    assert [batch.tolist() for batch in other] == epochs_of(8, 4, 2)[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_that_was_left_is_continued(workers):
    expected = epochs_of(40, 4, 1)[0]
    with loader(dataset(40), Order(40, 5, 4), workers) as batches:
        seen = []
        for batch in batches:
            seen.append(batch.tolist())
            if len(seen) == 3:
                break
        assert seen + [batch.tolist() for batch in batches] == expected


def test_an_iterator_of_before_is_refused():
    batches = loader(dataset(40), Order(40, 5, 4))
    first = iter(batches)
    next(first)
    second = iter(batches)
    with pytest.raises(RuntimeError, match="begun again"):
        next(first)
    assert next(second).tolist() == epochs_of(40, 4, 1)[0][1]
    batches.load_state_dict(batches.state_dict())
    with pytest.raises(RuntimeError, match="moved to a state"):
        next(second)


def test_the_size_of_batches_may_change_where_one_ends():
    batches = loader(dataset(40), Order(40, 5, 4))
    for _ in batches:
        if batches.state_dict()["delivered"] == 16:
            break
    other = loader(dataset(40), Order(40, 5, 8))
    other.load_state_dict(batches.state_dict())
    assert next(iter(other)).tolist() == epochs_of(40, 8, 1)[0][2]
    with pytest.raises(StateError, match="batch of 5"):
        loader(dataset(40), Order(40, 5, 5)).load_state_dict(batches.state_dict())


@pytest.mark.parametrize("change, words", [
    (dict(digest="x"), "digest is 'x'"), (dict(seed=6), "seed is 6, and here it is 5"),
    (dict(shuffle=None), "shuffle is None"), (dict(records=41), "records is 41"), (dict(format=2), "format 2"),
    (dict(epoch=-1), "epoch -1"), (dict(epoch="1"), "epoch '1'"), (dict(delivered=44), "44 records"),
    (dict(delivered=-4), "-4 records"), (dict(delivered=3), "3 records"), (dict(delivered=None), "None delivered"),
])
def test_states_of_others_are_refused(change, words):
    batches = loader(dataset(40), Order(40, 5, 4))
    with pytest.raises(StateError, match=words):
        batches.load_state_dict({**batches.state_dict(), **change})
    for state in ({}, None, {"format": 1}):
        with pytest.raises(StateError):
            batches.load_state_dict(state)


def test_errors_of_workers_have_their_kind_and_place():
    ds = Dataset(Model(fails_at=int(ids_of(40).values[30])), ids_of(40), decode=decode_ids)
    order = Order(40, 5, 4, shuffle=None)
    for workers in (0, 2):
        with loader(ds, order, workers) as batches:
            seen = []
            with pytest.raises(OSError, match="cannot read") as err:
                for batch in batches:
                    seen.append(batch.tolist())
            assert len(seen) == 7
            assert batches.state_dict()["delivered"] == 28
            assert not workers or "get_many" in str(err.value.__cause__)


def test_a_killed_worker_is_an_error_and_the_next_loop_continues():
    expected = epochs_of(400, 4, 1)[0]
    with loader(dataset(400), Order(400, 5, 4), 2) as batches:
        seen = []
        with pytest.raises(WorkerDied, match="worker 1 of 2 ended with code -9"):
            for batch in batches:
                seen.append(batch.tolist())
                if len(seen) == 10:
                    os.kill(batches._pool.workers[1][0].pid, signal.SIGKILL)
        assert 10 <= len(seen) < 16
        assert seen + [batch.tolist() for batch in batches] == expected


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc is not that of glibc")
def test_workers_keep_the_memory_of_messages():
    with loader(dataset(4, decode=model.page_faults), Order(4, 5, 4), 1) as batches:
        assert next(iter(batches))[0] < 1000  # 16 MiB have 4,096 pages


def test_what_cannot_be_sent_to_workers_is_refused():
    with pytest.raises(TypeError, match="top of a module"):
        loader(dataset(4, decode=lambda table: table), Order(4, 5), 1)
    with pytest.raises(ValueError, match="4 samples"):
        loader(dataset(4), Order(5, 5))
    for fields in (dict(workers=-1), dict(prefetch=0)):
        with pytest.raises(ValueError, match="workers is"):
            loader(dataset(4), Order(4), **fields)


def test_a_loader_behind_a_fork_is_refused():
    batches = loader(dataset(4), Order(4, 5))
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)  # ends a child that hangs
        try:
            iter(batches)
        except Forked as err:
            os.write(write, str(err).encode())
        os._exit(0)
    os.close(write)  # a child that was ended leaves nothing to read
    os.waitpid(pid, 0)
    assert b"before a fork" in os.read(read, 1000)


def test_no_samples():
    ds = Dataset(Model(), Ids.of({}))
    batches = loader(ds, Order(0, 5, 4))
    assert list(batches) == [] and batches.epoch == 1
    ranks = [loader(dataset(1), Order(1, 5, 3, rank, 3)) for rank in range(3)]
    assert [[b.tolist() for b in rank] for rank in ranks] == [[[]], [[]], [ids_of(1).values.tolist()]]
    assert pickle.loads(pickle.dumps(ds)).digest == ds.digest
