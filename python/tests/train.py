"""A training that is killed: train.py FOLDER RECORDS BATCH WORLD WORKERS EPOCHS.

Each step hands out one batch on all ranks, appends the ids to FOLDER/log and writes FOLDER/state: the state of the
loaders and the size of the log, as a checkpoint that belongs together. A start continues with the last state.
"""

import json
import os
import sys

from model import Model, decode_ids, ids_of
from sheafdb.ml import Dataset, Order, loader


def main(folder, records, batch, world, workers, epochs):
    ds = Dataset(Model(), ids_of(records), decode=decode_ids)
    ranks = [loader(ds, Order(records, 5, batch, rank, world), workers, prefetch=1 + rank % 3) for rank in range(world)]
    log = os.open(f"{folder}/log", os.O_RDWR | os.O_CREAT)
    if os.path.exists(f"{folder}/state"):
        with open(f"{folder}/state") as file:
            state = json.load(file)
        os.ftruncate(log, state["log"])
        for rank in ranks:
            rank.load_state_dict(state["loader"])
    else:
        os.ftruncate(log, 0)
    os.lseek(log, 0, os.SEEK_END)
    while ranks[0].epoch < epochs:
        for parts in zip(*ranks, strict=True):
            os.write(log, b"".join(part.astype("<i8").tobytes() for part in parts))
            state = {"log": os.lseek(log, 0, os.SEEK_END), "loader": ranks[0].state_dict()}
            with open(f"{folder}/aside", "w") as file:
                json.dump(state, file)
            os.rename(f"{folder}/aside", f"{folder}/state")
            print("step", flush=True)
    print("end", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
